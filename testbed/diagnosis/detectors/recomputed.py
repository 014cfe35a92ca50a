"""Log-probs that were computed again instead of recorded: bitwise equal where weights or engines differ.

Two engines, or two versions of the weights, do not agree to the last bit on tokens that are neither sure nor impossible;
where they do, one column was computed in the other's place. What must differ is told by tags: tokens of a version that is
not the newest, and tokens drawn by two or more engines. Without tags, equality may mean that nothing lies between the two
policies; see the check `zero_variance`.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* by version: 100 of 100 simulated, 100 of 100 real
* by engine: 100 of 100 simulated, 100 of 100 real
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch

KIND = "fault"
FEWEST = 32  # tokens that must differ
EQUAL = 0.5  # share of them that are bitwise equal
SURE = -1e-3  # nats: surer tokens may agree by rounding


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Share of bitwise equal log-probs among tokens that must differ: behavior/target by version, behavior/trainer by engine."""
    behavior = batch.logp_behavior.double()
    return {
        name: float((behavior == other.double())[chosen].double().mean())
        for name, (other, chosen) in _must_differ(batch).items()
        if int(chosen.sum()) >= FEWEST
    }


def why_not(batch: SegmentedBatch) -> str:
    """Say what is missing: the tags, a second version or engine, or tokens that must differ."""
    if batch.version is None and batch.engine is None:
        return "no column `version` or `engine`"
    counts = [int(chosen.sum()) for _, chosen in _must_differ(batch).values()]
    if not counts:
        recorded = [name for name in ("version", "engine") if getattr(batch, name) is not None]
        return f"one {' and one '.join(recorded)}: nothing has to differ"
    return "" if max(counts) >= FEWEST else f"{max(counts)} of {FEWEST} tokens that have to differ"


def _must_differ(batch: SegmentedBatch) -> dict[str, tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]]:
    """Return what the behavior is compared with, and at which tokens, for each kind of tag that tells two things apart."""
    found = {}
    open_token = batch.mask & (batch.logp_behavior.double() < SURE)
    if batch.version is not None and len(batch.version[batch.mask].unique()) > 1:
        stale = batch.version < batch.version[batch.mask].max()
        found["stale_equal"] = (batch.logp_target, open_token & stale)
    if batch.engine is not None and len(batch.engine[batch.mask].unique()) > 1:
        trainer = batch.logp_target if batch.logp_proximal is None else batch.logp_proximal
        found["engines_equal"] = (trainer, open_token)
    return found


def verdict(measured: dict[str, float]) -> str:
    """Say which column was computed again, or nothing."""
    seen = []
    if measured.get("stale_equal", 0.0) >= EQUAL:
        seen.append(
            f"{measured['stale_equal']:.0%} of the earlier versions' tokens have exactly the target's log-prob as the behavior's"
        )
    if measured.get("engines_equal", 0.0) >= EQUAL:
        seen.append(
            f"{measured['engines_equal']:.0%} of the tokens of several engines have exactly the trainer's log-prob"
        )
    if not seen:
        return ""
    return (
        "; ".join(seen)
        + ": the behavior's log-probs were recomputed, not recorded, and ratios hide what they should show"
    )
