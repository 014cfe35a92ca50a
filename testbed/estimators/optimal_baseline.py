"""The constant to subtract from the reward that minimizes the variance of a weighted policy gradient.

With exact weights every constant leaves the mean of the gradient alone, so the best one is a matter of variance only. It
is *not* the mean reward, on-policy either: rewards count in proportion to the squared length of their weighted score.
Once weights are capped or masked the same constant moves the mean too, by -b E[w s] (S16).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.estimators.gradient import gradient_terms
from testbed.policies.base import Policy
from testbed.weighting.weights import Weights


class OptimalBaseline(NamedTuple):
    """The best constant baseline, and how much of the variance (trace, one response) it removes."""

    value: float
    variance_drop: float


def optimal_scalar_baseline(
    batch: SegmentedBatch, w: Weights | Tensor, pi: Policy, probs: Float[Tensor, " B"] | None = None
) -> OptimalBaseline:
    """Baseline b* that minimizes the trace of Var((R - b) v) when E v = 0, with v = sum_t w_t grad log pi(y_t|h_t).

        b* = E[|v|^2 R] / E[|v|^2];   Var(b) = Var(b*) + (b - b*)^2 E[|v|^2];   Var(0) - Var(b*) = E[|v|^2 R]^2 / E[|v|^2]

    For the sequence product W and the response score s this is E[W^2 |s|^2 R] / E[W^2 |s|^2].

    Parameters
    ----------
    batch : SegmentedBatch              `reward` is R
    w : Weights, or a tensor [B, T]     exact products of ratios: sequence_product or prefix
    pi : Policy with parameters         the scores are taken in its parameters
    probs : Float[Tensor, " B"] | None  exact probability of each response; None = a sample, equal shares

    Returns
    -------
    OptimalBaseline   in units of the reward, and of squared gradients; (0, 0) where every weighted score is 0

    Raises
    ------
    InputError   wrong shapes; probabilities that are no law

    Assumes        E v = 0: exact weights, a behavior that covers the target. With capped weights it is not the optimum
    Gives          the unique minimizer (S16) when `probs` is given. From a sample: estimate it on responses other than
                   those it is used on, or the gradient is biased
    References     Greensmith, Bartlett and Baxter 2004, J. Mach. Learn. Res. 5:1471 (on-policy)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law, weigh
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.2, 0.8]]))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, pi)
    >>> found = optimal_scalar_baseline(law.batch, weigh("sequence_product", law.batch), pi, law.probs)
    >>> round(found.value, 12), round(found.variance_drop, 12)  # mean reward: 0.8
    (0.2, 0.0128)
    """
    score = gradient_terms(batch, w, pi, advantage=torch.ones_like(batch.reward))
    length = score.reshape(batch.batch_size, -1).square().sum(1)
    if probs is None:
        share = torch.full_like(length, 1.0 / max(batch.batch_size, 1))
    else:
        require_shape("probs", probs, (batch.batch_size,))
        share = probs.double()
        if bool((share < 0).any()) or not abs(float(share.sum()) - 1.0) <= 1e-9:
            raise InputError("`probs` must be >= 0 with total 1", found=f"total {float(share.sum()):.12g}")
    live = share * length > 0
    reward = torch.where(live, batch.reward.double(), 0.0)  # where the score is 0 the reward does not count
    total, weighted = float((share * length).sum()), float((share * length * reward).sum())
    return OptimalBaseline(weighted / total, weighted**2 / total) if total > 0 else OptimalBaseline(0.0, 0.0)
