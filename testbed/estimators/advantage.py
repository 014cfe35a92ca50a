"""Advantages from groups of responses to one prompt: what is subtracted and what it is divided by, each an argument."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError

Baseline = Literal["none", "group_mean", "leave_one_out"]


def group_advantage(
    batch: SegmentedBatch,
    baseline: Baseline = "group_mean",
    scale: Literal["none", "std"] = "none",
    ddof: int = 0,
    strict: bool = False,
) -> Float[Tensor, " B"]:
    """Reward minus a baseline of its group, optionally divided by the group's standard deviation.

    group_mean: A_i = R_i - mean(R);  leave_one_out: A_i = R_i - mean(R_j, j != i) = M/(M-1) (R_i - mean(R))

    Parameters
    ----------
    batch : SegmentedBatch   `reward` [B] and `group` [B]; responses without tokens are not counted and get 0. A gate has
                             no say: rejected tokens keep their reward unless `reward_scope` took it away
    baseline : what is subtracted
    scale : "std" divides by the group's standard deviation; groups without spread get 0
    ddof : 0 for the population standard deviation, 1 for the sample's
    strict : refuse groups of one instead of giving them advantage 0

    Returns
    -------
    Float[Tensor, " B"]   detached, in the reward's dtype (at least float32)

    Raises
    ------
    InputError   unknown option; with `strict`, a group of one under a baseline or a scale

    Examples
    --------
    >>> import testbed
    >>> one = torch.ones(2, 1)
    >>> batch = testbed.SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one, logp_behavior=-one,
    ...     reward=torch.tensor([1.0, 0.0]), group=torch.tensor([7, 7]))
    >>> group_advantage(batch, "group_mean", "std"), group_advantage(batch, "group_mean", "std", ddof=1)
    (tensor([ 1., -1.]), tensor([ 0.7071, -0.7071]))
    """
    if baseline not in ("none", "group_mean", "leave_one_out"):
        raise InputError("`baseline` must be 'none', 'group_mean' or 'leave_one_out'", found=repr(baseline))
    if scale not in ("none", "std"):
        raise InputError("`scale` must be 'none' or 'std'", found=repr(scale))
    if ddof not in (0, 1):
        raise InputError("`ddof` must be 0 or 1", found=ddof)
    reward = batch.reward.detach()
    reward = reward if reward.dtype in (torch.float32, torch.float64) else reward.float()
    counted = batch.mask.any(1)
    if batch.batch_size == 0:
        return reward
    _, member = torch.unique(batch.group, return_inverse=True)
    groups = int(member.max()) + 1

    def total(values: Tensor) -> Tensor:
        return torch.zeros(groups, dtype=reward.dtype, device=reward.device).index_add_(
            0, member, torch.where(counted, values, 0.0)
        )

    size = total(torch.ones_like(reward))
    alone = counted & (size[member] == 1)
    if strict and (baseline != "none" or scale != "none") and bool(alone.any()):
        raise InputError(
            "a group needs at least two responses for a baseline or a scale",
            found=f"{int(alone.sum())} groups of one, first prompt {int(batch.group[alone][0])}",
        )
    mean = (total(reward) / size.clamp(min=1))[member]
    centered = reward - mean
    variance = (total(centered**2) / (size - ddof).clamp(min=1))[member]
    if baseline == "none":
        advantage = reward.clone()
    elif baseline == "group_mean":
        advantage = centered
    else:
        advantage = centered * (size / (size - 1).clamp(min=1))[member]
    if scale == "std":
        # rewards equal up to rounding have no spread: their quotient would be rounding noise of size one
        spread = variance.sqrt()
        flat = (
            spread <= 1e-6 * (mean.abs() + spread)
            if reward.dtype == torch.float32
            else spread <= 1e-12 * (mean.abs() + spread)
        )
        advantage = torch.where(
            flat, torch.zeros_like(advantage), advantage / torch.where(flat, torch.ones_like(spread), spread)
        )
    silent = ~counted | (alone if baseline != "none" else torch.zeros_like(alone))
    return torch.where(silent, torch.zeros_like(advantage), advantage)
