"""Policy-gradient terms: one gradient per response, so that mean, variance and exact moments are generic."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape, rows_or_tokens
from testbed.policies.base import Policy
from testbed.weighting.weights import Weights


def gradient_terms(
    batch: SegmentedBatch, w: Weights | Tensor, pi: Policy, advantage: Tensor | None = None
) -> Float[Tensor, "B ..."]:
    """Terms of the weighted score-function estimator, one per response.

    g_b = sum_t w_bt A_bt grad log pi(y_bt | h_bt)

    Parameters
    ----------
    batch : SegmentedBatch
    w : Weights, or a tensor [B, T]   dimensionless; 0 removes a token
    pi : Policy with parameters       the scores are taken in its parameters
    advantage : [B] or [B, T] | None  None uses `batch.reward`

    Returns
    -------
    Float64[Tensor, "B *parameters"]   unnormalized: the batch gradient is their mean over responses

    Raises
    ------
    InputError   wrong shapes; NaN where the weight is not 0

    Assumes        nothing; whether the mean is the policy gradient is what S2-S5 decide
    Gives          E_mu[g] = grad J for the full product and a terminal reward (S2)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law, moments
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, pi)
    >>> moments(law, gradient_terms(law.batch, torch.ones(2, 1), pi)).mean
    tensor([[-0.2500,  0.2500]], dtype=torch.float64)
    """
    value = w.value if isinstance(w, Weights) else w
    require_shape("w", value, tuple(batch.mask.shape))
    a = batch.reward if advantage is None else advantage
    a = rows_or_tokens("advantage", a, batch.batch_size, batch.horizon).double()
    zero = torch.zeros((), dtype=torch.float64)
    live = batch.mask & (value != 0)
    if bool((live & a.isnan()).any()):
        raise InputError(
            "`advantage` must not be NaN on a weighted token", found=f"{int((live & a.isnan()).sum())} NaN"
        )
    coefficient = torch.where(live, value.double() * torch.where(live, a, zero), zero)
    return pi.at(batch.group).score_terms(batch.tokens, coefficient)
