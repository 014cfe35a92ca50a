"""One column is shifted by a position: log-probs of neighboring tokens agree better than those of the same token.

    closeness = min(mean |target_t - other_(t+1)|, mean |target_t - other_(t-1)|) / mean |target_t - other_t|

below 1 where something is shifted, for `other` the behavior or the proximal policy.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* target, a place late: 100 of 100 simulated, 100 of 100 real
* behavior, a place early: 100 of 100 simulated, 100 of 100 real
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch

KIND = "fault"
CLOSENESS = 1.0
FEWEST = 16  # pairs of neighbors with finite log-probs


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Smallest closeness over the columns; `step` is +1 where the next token agrees, -1 where the one before does."""
    found: dict[str, float] = {}
    for code, other in enumerate((batch.logp_behavior, batch.logp_proximal)):
        if other is None:
            continue
        here, step, there = _gaps(batch, other)
        closeness = there / here if here > 0 else math.inf
        if math.isfinite(here) and math.isfinite(there) and closeness < found.get("closeness", math.inf):
            found = {"closeness": closeness, "here": here, "there": there, "step": step, "proximal": float(code)}
    return found


def why_not(batch: SegmentedBatch) -> str:
    """Say what is missing: enough pairs of neighbors in the column that has most of them."""
    most = 0
    both = batch.mask[:, 1:] & batch.mask[:, :-1]
    target = torch.isfinite(batch.logp_target)
    for other in (batch.logp_behavior, batch.logp_proximal):
        if other is not None:
            finite = torch.isfinite(other)
            sides = ((1, 1), (0, 1), (1, 0))  # same token, the target's one earlier, one later
            ends = [slice(None, -1), slice(1, None)]
            most = max(most, min(int((both & target[:, ends[a]] & finite[:, ends[b]]).sum()) for a, b in sides))
    return "" if most >= FEWEST else f"{most} of {FEWEST} pairs of neighboring tokens"


def _gaps(batch: SegmentedBatch, other: Float[Tensor, "B T"]) -> tuple[float, float, float]:
    """Return the mean gap at the same token, the better neighbor's direction, and the mean gap there."""
    both = batch.mask[:, 1:] & batch.mask[:, :-1]
    target = batch.logp_target

    def apart(a: Tensor, b: Tensor) -> float:
        finite = both & torch.isfinite(a) & torch.isfinite(b)
        return float((a - b).abs()[finite].double().mean()) if int(finite.sum()) >= FEWEST else math.nan

    here = apart(target[:, 1:], other[:, 1:])
    later, earlier = apart(target[:, :-1], other[:, 1:]), apart(target[:, 1:], other[:, :-1])
    return here, 1.0 if later < earlier else -1.0, min(later, earlier)


def verdict(measured: dict[str, float]) -> str:
    """Say what is shifted, or nothing."""
    if not measured["closeness"] < CLOSENESS:
        return ""
    whose = "the proximal policy's" if measured["proximal"] else "the behavior's"
    where = "the next" if measured["step"] > 0 else "the previous"
    return (
        f"the target's log-prob agrees better with {whose} at {where} token (mean gap {measured['there']:.3g} nats) than at "
        f"its own ({measured['here']:.3g}): one column is shifted by a position"
    )
