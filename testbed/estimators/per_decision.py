"""Per-decision policy gradients: every per-step reward has a weight of its own and credits the tokens up to it.

The value estimator of the same name is in `value.py`; a terminal reward has one term only and gains nothing here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.shapes import require_shape
from testbed.estimators.gradient import gradient_terms
from testbed.policies.base import Policy
from testbed.weighting.weights import Weights


def weighted_reward_to_go(batch: SegmentedBatch, w: Weights | Tensor) -> Float[Tensor, "B T"]:
    """Sum of the rewards from each token on, each under the weight of its own token: sum_{u>=t} w_u r_u.

    Parameters
    ----------
    batch : SegmentedBatch                 needs `token_reward`
    w : Weights, or a tensor [B, T]        0 removes a reward, whatever its size

    Returns
    -------
    Float64[Tensor, "B T"]                 0 on padding

    Raises
    ------
    MissingField, InputError   no per-step rewards; a wrong shape

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 3, dtype=torch.long), mask=torch.tensor([[True, True, False]]),
    ...     segment=torch.zeros(1, 3, dtype=torch.long), logp_target=-torch.ones(1, 3), logp_behavior=-torch.ones(1, 3),
    ...     reward=torch.ones(1), group=torch.tensor([0]), token_reward=torch.tensor([[1.0, 2.0, 9.0]]))
    >>> weighted_reward_to_go(batch, torch.tensor([[0.5, 3.0, 7.0]]))
    tensor([[6.5000, 6.0000, 0.0000]], dtype=torch.float64)
    """
    reward = batch.require("token_reward", "per_decision").double()
    value = (w.value if isinstance(w, Weights) else w).double()
    require_shape("w", value, tuple(batch.mask.shape))
    zero = torch.zeros((), dtype=torch.float64)
    live = batch.mask & (value != 0)
    steps = torch.where(live, torch.where(live, value, zero) * reward, zero)
    return torch.where(batch.mask, steps.flip(1).cumsum(1).flip(1), zero)


def per_decision_gradient_terms(batch: SegmentedBatch, w: Weights | Tensor, pi: Policy) -> Float[Tensor, "B ..."]:
    """Terms of the per-decision score-function estimator, one per response.

    g_b = sum_u w_bu r_bu sum_{t<=u} grad log pi(y_bt | h_bt)

    Parameters
    ----------
    batch : SegmentedBatch            needs `token_reward`
    w : Weights, or a tensor [B, T]   weight of each reward; `weigh("prefix", batch)` for the unbiased one
    pi : Policy with parameters

    Returns
    -------
    Float64[Tensor, "B *parameters"]

    Raises
    ------
    MissingField, InputError   no per-step rewards; wrong shapes

    Assumes        for prefix weights: every behavior supports the target; prefix-measurable boundaries
    Gives          E_mu[g] = grad E_pi[sum_u r_u] with prefix weights (S3)
    References     Precup, Sutton and Singh 2000 (per-decision importance sampling)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law, moments
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> tree = PrefixTree(2, 1, rewards=[0.0, 0.0], token_rewards=torch.tensor([[0.0, 1.0]]))
    >>> law = enumerate_law(tree, pi, pi)
    >>> moments(law, per_decision_gradient_terms(law.batch, torch.ones(2, 1), pi)).mean
    tensor([[-0.2500,  0.2500]], dtype=torch.float64)
    """
    return gradient_terms(batch, batch.mask.double(), pi, weighted_reward_to_go(batch, w))
