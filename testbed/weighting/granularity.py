"""The six ratios a token can be weighted by, in log space: the first of the two axes of every weighting rule.

`token` corrects one decision; `prefix` and `segment_prefix` correct the state a decision was taken in; `segment` one
behavior's run; `sequence_product` the whole response (the only one that is unbiased for every function of it);
`sequence_geomean`, its length-th root, is a trust-region statistic and estimates nothing. The last two are different
objects that share a colloquial name: 1000 tokens of log ratio .002 have product 7.39 and geometric mean 1.002.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.batch_checks import first_index
from testbed.core.errors import InputError
from testbed.weighting.limits import nearest
from testbed.weighting.rule import GRANULARITIES

_POLICIES = ("target", "behavior", "proximal")
_LARGEST = 1e300  # a sum of up to 1e8 log ratios below this cannot overflow, so no inf - inf can arise


def log_ratios(
    batch: SegmentedBatch, granularity: str = "token", *, numerator: str = "target", denominator: str = "behavior"
) -> Float[Tensor, "B T"]:
    """Log ratio of two policies at each token, at one granularity.

        token             l_t = log target(y_t | y_<t) - log behavior(y_t | y_<t)
        prefix            sum of l_s over s <= t
        segment           sum of l_s over the whole segment of t
        segment_prefix    sum of l_s from the first token through the end of t's segment
        sequence_product  sum of l_s over the response
        sequence_geomean  mean of l_s over the response

    Parameters
    ----------
    batch : SegmentedBatch
    granularity : str                  one of GRANULARITIES
    numerator, denominator : str       target, behavior or proximal

    Returns
    -------
    Float[Tensor, "B T"]               nats; 0 on padding; -inf where a numerator probability of 0 is included;
                                       never NaN or +inf; detached

    Raises
    ------
    InputError     unknown granularity or policy; a denominator of probability 0 under a possible token
    MissingField   proximal asked for and not recorded
    Assumes        the denominator's log-probs are those the token was drawn with (temperature, top-p, noise included)
    Gives          S2 (sequence_product), S1 and S4 (segment_prefix, prefix), S5 (token), C14 (sequence_geomean)
    Numerics       token: one subtraction in the batch's dtype. Everything else is summed in float64 and cast back;
                   segments are scattered by label, never differences of running sums (-inf minus -inf). Cost O(B T)

    Examples
    --------
    >>> import torch
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 4, dtype=torch.int64), mask=torch.tensor([[True, True, True, False]]),
    ...     segment=torch.tensor([[0, 0, 1, -1]]), logp_target=torch.tensor([[-1.0, -2.0, -3.0, 9.0]]),
    ...     logp_behavior=torch.tensor([[-2.0, -2.5, -1.0, 9.0]]), reward=torch.ones(1), group=torch.tensor([0]))
    >>> log_ratios(batch)
    tensor([[ 1.0000,  0.5000, -2.0000,  0.0000]])
    >>> log_ratios(batch, "segment_prefix")
    tensor([[ 1.5000,  1.5000, -0.5000,  0.0000]])
    """
    if granularity not in GRANULARITIES:
        raise InputError("`granularity` is unknown", found=repr(granularity), hint=nearest(granularity, GRANULARITIES))
    per_token = _token_log_ratio(batch, numerator, denominator)
    if granularity == "token":
        return per_token
    wide = per_token.to(torch.float64).clamp(max=_LARGEST)
    if granularity == "prefix":
        total = wide.cumsum(1)
    elif granularity == "sequence_product":
        total = wide.sum(1, keepdim=True)
    elif granularity == "sequence_geomean":
        total = wide.sum(1, keepdim=True) / batch.lengths.clamp(min=1)[:, None]
    else:
        total = _segment_total(wide, batch.segment, through=granularity == "segment_prefix")
    total = total.clamp(max=torch.finfo(per_token.dtype).max).to(per_token.dtype)
    return torch.where(batch.mask, total, torch.zeros((), dtype=total.dtype, device=total.device))


def _token_log_ratio(batch: SegmentedBatch, numerator: str, denominator: str) -> Float[Tensor, "B T"]:
    """Numerator minus denominator; padding is 0 on both sides, so the difference is 0 there."""
    above, below = (_log_probs(batch, policy) for policy in (numerator, denominator))
    ratio = above - below
    if denominator == "behavior":  # finite on every drawn token: checked when the batch was made
        return ratio
    never = torch.isneginf(below)
    bad = never & ~torch.isneginf(above)
    if bool(bad.any()):
        raise InputError(
            f"`logp_{denominator}` must be finite where it divides a possible token",
            found=f"{int(bad.sum())} of -inf, first at {first_index(bad)}",
        )
    return torch.where(never, above, ratio)


def _log_probs(batch: SegmentedBatch, policy: str) -> Float[Tensor, "B T"]:
    if policy not in _POLICIES:
        raise InputError("a ratio is between target, behavior and proximal", found=repr(policy))
    return batch.require(f"logp_{policy}", "log_ratios").detach()


def _segment_total(wide: Float[Tensor, "B T"], segment: Int64[Tensor, "B T"], *, through: bool) -> Float[Tensor, "B T"]:
    """Sum over each token's own segment, or through the end of it. Padding adds 0 to whatever it is scattered on."""
    if wide.numel() == 0:
        return wide
    label = segment.clamp(min=0)
    if int(label.max()) >= wide.shape[1]:
        label = _ranks(segment)
    totals = wide.new_zeros(wide.shape[0], int(label.max()) + 1).scatter_add_(1, label, wide)
    return (totals.cumsum(1) if through else totals).gather(1, label)


def _ranks(segment: Int64[Tensor, "B T"]) -> Int64[Tensor, "B T"]:
    """Replace large labels (policy versions, say) by their rank along the row: the table of sums stays small."""
    filled = segment.cummax(1).values
    step = torch.diff(filled, dim=1, prepend=filled[:, :1]) != 0
    return step.long().cumsum(1)
