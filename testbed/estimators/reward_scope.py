"""Whether rejecting a token also takes away the reward that sits on it: two returns, each with a name.

A mask decides which tokens are trained on. The response was still written, and still earned what it earned; by default
rejection therefore leaves returns alone. The other scope exists because some trainers sum rewards over kept tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape


class ScopedRewards(NamedTuple):
    """Return of each response [B] under a scope, and how many responses have reward on a rejected token."""

    reward: Tensor
    rewards_on_rejected: int


def scoped_rewards(
    batch: SegmentedBatch, gate: Bool[Tensor, "B T"], scope: Literal["trajectory", "kept_tokens"] = "trajectory"
) -> ScopedRewards:
    """Return of each response once a gate has rejected some of its tokens.

        trajectory    R, whatever was rejected
        kept_tokens   R - sum of the per-step rewards of rejected tokens

    Parameters
    ----------
    batch : SegmentedBatch         needs `token_reward`
    gate : Bool[Tensor, "B T"]     False on rejected tokens (`weigh(...).gate`)
    scope : str                    the counter is the same under both

    Returns
    -------
    ScopedRewards   `batch.replaced(reward=...)` then goes into `group_advantage`

    Raises
    ------
    MissingField, InputError   no per-step rewards; unknown scope; a gate of another shape
    Gives          kept_tokens changes what is estimated: its advantages are those of another reward

    Examples
    --------
    >>> one = torch.ones(1, 2)
    >>> batch = SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one, logp_behavior=-one,
    ...     reward=torch.tensor([1.0]), group=torch.tensor([0]), token_reward=torch.tensor([[0.0, 1.0]]))
    >>> gate = torch.tensor([[True, False]])
    >>> scoped_rewards(batch, gate), scoped_rewards(batch, gate, "kept_tokens").reward
    (ScopedRewards(reward=tensor([1.]), rewards_on_rejected=1), tensor([0.]))
    """
    if scope not in ("trajectory", "kept_tokens"):
        raise InputError("`scope` must be 'trajectory' or 'kept_tokens'", found=repr(scope))
    require_shape("gate", gate, tuple(batch.mask.shape))
    steps = batch.require("token_reward", "scoped_rewards")
    rejected = batch.mask & ~gate & (steps != 0)
    reward = batch.reward
    if scope == "kept_tokens":
        lost = torch.where(rejected, steps, torch.zeros((), dtype=steps.dtype, device=steps.device)).sum(1)
        reward = reward - lost.to(reward.dtype)
    return ScopedRewards(reward, int(rejected.any(1).sum()))
