"""What a group of responses contributes to the gradient: advantages from the group, weights from a rule, a normalizer.

Every group is one batch of `policy_loss`: the coefficients are those of its gradient, for many groups in one call.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.estimators.advantage import group_advantage
from testbed.estimators.loss import Denominator, Normalizer, reduce_objective
from testbed.estimators.weighted_baseline import WEIGHTED_BASELINES, weighted_group_advantage
from testbed.weighting.rules import weigh


def group_coefficients(
    batch: SegmentedBatch,
    baseline: str = "group_mean",
    scale: str = "none",
    ddof: int = 0,
    *,
    rule: str = "none",
    normalizer: Normalizer = "token_mean",
    denominator: Denominator = "original",
    constant: float | None = None,
    **params: Any,
) -> Float[Tensor, "B T"]:
    """Coefficient of every token's score in the update of its own group.

        update of a group = -grad policy_loss(group) = sum_{i,t} c_it grad log pi(y_it | h_it),   c = w A / D

    Parameters
    ----------
    batch : SegmentedBatch   groups of equal size, the responses of a group next to each other
    baseline : those of `group_advantage`, or of `weighted_group_advantage` (which take no `scale`)
    scale, ddof : as in `group_advantage`
    rule, params : the weighting rule, see `weigh`
    normalizer, denominator, constant : as in `policy_loss`, each group a batch of its own

    Returns
    -------
    Float[Tensor, "B T"]   0 on padding

    Raises
    ------
    InputError   groups of unequal size or not next to each other; an unknown option

    Examples
    --------
    >>> import testbed
    >>> one = torch.ones(4, 1)
    >>> batch = testbed.SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one, logp_behavior=-one,
    ...     reward=torch.tensor([1.0, 0.0, 1.0, 1.0]), group=torch.tensor([0, 0, 1, 1]))
    >>> group_coefficients(batch)[:, 0]
    tensor([ 0.2500, -0.2500,  0.0000,  0.0000])
    """
    if normalizer not in ("token_mean", "sequence_mean", "constant"):
        raise InputError("`normalizer` must be 'token_mean', 'sequence_mean' or 'constant'", found=repr(normalizer))
    if denominator not in ("original", "kept"):
        raise InputError("`denominator` must be 'original' or 'kept'", found=repr(denominator))
    shape = (_group_count(batch), -1, batch.horizon)
    if baseline in WEIGHTED_BASELINES:
        if scale != "none":
            raise InputError("weighted baselines go with scale='none'", found=repr(scale))
        advantage = weighted_group_advantage(batch, baseline)
    else:
        advantage = group_advantage(batch, baseline, scale, ddof)  # type: ignore[arg-type]
    w = weigh(rule, batch, advantage=advantage, **params)
    zero = torch.zeros((), dtype=torch.promote_types(w.value.dtype, advantage.dtype))
    slope = torch.where((w.value != 0) & (advantage != 0)[:, None], w.value * advantage[:, None], zero)
    counted = batch.mask if denominator == "original" or w.objective is not None else w.gate

    def reduced(objective: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
        return reduce_objective(objective, mask, kept, normalizer, constant)

    with torch.enable_grad():
        objective = torch.zeros_like(slope).reshape(shape).requires_grad_(True)
        means = torch.vmap(reduced)(objective, batch.mask.reshape(shape), counted.reshape(shape))
        (per_token,) = torch.autograd.grad(means.sum(), objective)
    return _product(slope, per_token.reshape(slope.shape), batch.mask)


def _product(a: Float[Tensor, "B T"], b: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Product a b on the mask, with 0 times infinity 0."""
    return torch.where(mask & (a != 0) & (b != 0), a * b, torch.zeros((), dtype=a.dtype))


def _group_count(batch: SegmentedBatch) -> int:
    """Number of groups, once it is certain that they are blocks of equal size."""
    blocks, sizes = torch.unique_consecutive(batch.group, return_counts=True)
    if len(sizes) == 0 or len(torch.unique(blocks)) != len(blocks) or int(sizes.min()) != int(sizes.max()):
        raise InputError(
            "groups must be of equal size, with the responses of a group next to each other",
            found=f"blocks of {sorted(set(sizes.tolist()))} responses for {len(torch.unique(batch.group))} groups",
        )
    return len(sizes)
