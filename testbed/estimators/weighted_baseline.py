"""Baselines of a group that count the rewards of stale responses by their importance weights.

A baseline that a response's own reward enters is no constant for that response: with weights the harm is no longer the
factor (M-1)/M of the plain group mean but E[W^2 R s]/M (weighted mean), or a direction of its own (self-normalized). The
leave-one-out variants depend on the other responses only and leave the mean of the update alone (G2).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.weighting.granularity import log_ratios

WEIGHTED_BASELINES = (
    "weighted_mean",
    "self_normalized",
    "weighted_leave_one_out",
    "self_normalized_leave_one_out",
)


def weighted_group_advantage(batch: SegmentedBatch, baseline: str = "weighted_leave_one_out") -> Float[Tensor, " B"]:
    """Reward minus a weighted mean of the rewards of its group; W_j is the full product of a response's ratios.

        weighted_mean                   b   = sum_j W_j R_j / M
        self_normalized                 b   = sum_j W_j R_j / sum_j W_j
        weighted_leave_one_out          b_i = sum_{j != i} W_j R_j / (M - 1)
        self_normalized_leave_one_out   b_i = sum_{j != i} W_j R_j / sum_{j != i} W_j

    Parameters
    ----------
    batch : SegmentedBatch   `reward` and `group` [B]; responses without tokens are not counted and get 0
    baseline : str           one of WEIGHTED_BASELINES

    Returns
    -------
    Float[Tensor, " B"]   detached, unweighted (the update multiplies by the weight); 0/0 makes a baseline of 0;
                          as in `group_advantage`, a response alone in its group gets 0 from the leave-one-out variants

    Raises
    ------
    InputError   unknown baseline

    Examples
    --------
    >>> import testbed
    >>> one = torch.ones(2, 1)
    >>> batch = testbed.SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), reward=torch.tensor([1.0, 0.0]),
    ...     logp_target=torch.tensor([[0.5], [0.2]]).log(), logp_behavior=torch.tensor([[0.25], [0.4]]).log(),
    ...     group=torch.tensor([7, 7]))
    >>> weighted_group_advantage(batch, "weighted_mean"), weighted_group_advantage(batch, "self_normalized")
    (tensor([ 0., -1.]), tensor([ 0.2000, -0.8000]))
    """
    if baseline not in WEIGHTED_BASELINES:
        raise InputError(f"`baseline` must be one of {', '.join(WEIGHTED_BASELINES)}", found=repr(baseline))
    reward = batch.reward.detach()
    reward = reward if reward.dtype in (torch.float32, torch.float64) else reward.float()
    if batch.batch_size == 0:
        return reward
    counted = batch.mask.any(1)
    zero = torch.zeros((), dtype=reward.dtype)
    log_weight = (
        log_ratios(batch, "sequence_product").detach().gather(1, batch.mask.long().argmax(1, keepdim=True))[:, 0]
    )
    weight = torch.where(counted, log_weight.exp().to(reward.dtype), zero)
    weighted = torch.where(weight != 0, weight * reward, zero)
    _, member = torch.unique(batch.group, return_inverse=True)
    alone = _others(counted.to(reward.dtype), member) == 0
    own = not baseline.endswith("leave_one_out")

    def total(values: Tensor) -> Tensor:
        return _others(values, member) + (values if own else 0.0)

    below = total(weight) if baseline.startswith("self_normalized") else total(counted.to(reward.dtype))
    mean = torch.where(below > 0, total(weighted) / torch.where(below > 0, below, torch.ones_like(below)), zero)
    return torch.where(counted & (own | ~alone), reward - mean, zero)


def _others(values: Float[Tensor, " B"], member: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Sum of the values of the other members of one's group.

    Added up from both sides: the total minus one's own value would lose the others' behind a large weight.
    """
    order = torch.argsort(member, stable=True)
    count = torch.bincount(member)
    slot = torch.empty_like(member)
    slot[order] = torch.arange(len(member)) - (count.cumsum(0) - count)[member[order]]
    table = torch.zeros(len(count), int(count.max()) + 1, dtype=values.dtype)
    table[member, slot + 1] = values
    before = table.cumsum(1)[:, :-1]
    turned = torch.cat([torch.zeros_like(table[:, :1]), table[:, 1:].flip(1)], 1)
    after = turned.cumsum(1)[:, :-1].flip(1)
    return (before + after)[member, slot]
