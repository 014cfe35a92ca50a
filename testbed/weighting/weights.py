"""What a weighting rule returns: the weight as applied, next to the ratio before the operator touched it.

`raw` and `value` are kept apart because every statistic of weights must say which it describes: an effective sample
size of capped weights looks healthy whatever the raw ratios do (S13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.numerics import safe_exp
from testbed.weighting.granularity import log_ratios


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """Detached per-token weights of a batch under one rule.

    Attributes
    ----------
    value : Float[Tensor, "B T"]       the weight with the gate applied; exactly 0 on padding and on gated-off tokens,
                                       and wherever the target gives the token probability 0
    gate : Bool[Tensor, "B T"]         False on padding and on tokens the rule rejects or clips away
    acted : Bool[Tensor, "B T"]        where the operator changed the raw ratio or rejected the token
    raw : Float[Tensor, "B T"]         the ratio of the rule's granularity before its operator; inf where it overflows
    saturated : int                    number of real tokens whose raw ratio overflowed to inf
    objective : Float[Tensor, "B T"] | None
                                       per-token surrogate value (before the minus sign) of clip-type rules; a constant:
                                       its gradient is value * advantage * grad log target
    rule, granularity, params          what was asked for, defaults filled in
    """

    value: Float[Tensor, "B T"]
    gate: Bool[Tensor, "B T"]
    acted: Bool[Tensor, "B T"]
    raw: Float[Tensor, "B T"]
    saturated: int
    objective: Float[Tensor, "B T"] | None = None
    rule: str = ""
    granularity: str = ""
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What a rule is given: batch, granularity, and the advantage [B, T] (0 on padding) if it needs one."""

    batch: SegmentedBatch
    granularity: str
    advantage: Float[Tensor, "B T"] | None = None

    def log_ratio(self) -> Float[Tensor, "B T"]:
        """Log ratio target/behavior at the requested granularity."""
        return log_ratios(self.batch, self.granularity)

    def signed(self) -> Float[Tensor, "B T"]:
        """Return the advantage of a rule that declared it needs one."""
        assert self.advantage is not None
        return self.advantage


def finish(
    request: Request,
    log_ratio: Float[Tensor, "B T"],
    value: Float[Tensor, "B T"],
    *,
    gate: Bool[Tensor, "B T"] | None = None,
    acted: Bool[Tensor, "B T"] | None = None,
    objective: Float[Tensor, "B T"] | None = None,
) -> Weights:
    """Apply mask and gate to an operator's output and set it beside the raw ratio exp(log_ratio).

    An objective is 0 on padding because the advantage is. `acted` defaults to "value differs from raw"; rules that
    reach their value by another route pass their own.
    """
    mask = request.batch.mask
    zero = torch.zeros((), dtype=value.dtype, device=value.device)
    raw, saturated = safe_exp(log_ratio, mask)
    open_gate = mask if gate is None else gate & mask
    value = torch.where(open_gate, value, zero)
    changed = (value != raw) if acted is None else acted & mask
    if gate is not None:
        changed = changed | (open_gate ^ mask)
    return Weights(value=value, gate=open_gate, acted=changed, raw=raw, saturated=saturated, objective=objective)


def apart(log_value: Float[Tensor, "B T"], log_raw: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Where two log weights that were summed along different routes differ by more than rounding."""
    tolerance = 16 * torch.finfo(log_raw.dtype).eps * log_raw.abs().clamp(1.0, 1e9)
    return (log_value - log_raw).abs() > tolerance  # False for two infinities of one sign
