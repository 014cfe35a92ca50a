"""Log-probs that have passed through a 16-bit format: all of at least 16 distinct values lie on its grid.

The search is made when a batch is built (`testbed.core.batch_checks.low_precision_grid`); a value rounded once stays
rounded, whatever it is stored in now. By chance this happens with probability below 2^-256.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* bfloat16: 100 of 100 simulated, 100 of 100 real
* float16: 100 of 100 simulated, 100 of 100 real
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

from testbed.core.batch import SegmentedBatch

KIND = "note"
FEWEST = 16  # distinct values of a column, as the search asks for


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Rounding grid in nats of each column that has one."""
    return dict(batch.facts.low_precision)


def why_not(batch: SegmentedBatch) -> str:
    """Say that no column has values enough: a few lie on any grid by chance."""
    columns = (batch.logp_target, batch.logp_behavior, batch.logp_proximal)
    values = [column[batch.mask & column.isfinite() & (column < 0)] for column in columns if column is not None]
    most = max(len(each.unique()) for each in values)
    return "" if most >= FEWEST else f"{most} of {FEWEST} distinct log-probs"


def verdict(measured: dict[str, float]) -> str:
    """Name the columns and their grids."""
    grids = ", ".join(f"`{name}` (grid {grid:g} nats)" for name, grid in measured.items())
    return f"log-probs have passed through a 16-bit format: {grids}; rounded once, they stay rounded"
