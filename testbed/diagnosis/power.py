"""How often the checks find a planted fault, and how often they accuse a healthy dump: `python -m testbed.diagnosis.power`.

Thresholds were chosen by looking at the streams named "calibration" only. The rates in the record, and in the docstrings of
the detectors, are those of the streams named "evaluation", which nobody looked at before. Rates carry the 95%
Clopper-Pearson bound of their count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from testbed.core.batch import SegmentedBatch
from testbed.core.records import write_json_atomic
from testbed.core.seeds import SeedTree
from testbed.diagnosis.detectors.registry import BUDGET, DETECTORS, findings
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.faults import fault_records
from testbed.diagnosis.planted_faults import planted, strengths
from testbed.diagnosis.simulated_dumps import drawn_from, simulated_dump
from testbed.diagnosis.unit_mean import unit_mean_scores
from testbed.sample_data import partial_rollouts_path
from testbed.stats.intervals import clopper_pearson

RECORD = Path(__file__).parent / "detectors" / "power.json"
ROOT = SeedTree("power of the fault detectors")
HEALTHY, REAL_HEALTHY, FAULTY = 2000, 400, 100  # dumps; of each strength


def alarms(batch: SegmentedBatch) -> list[str]:
    """Names of the faults (not notes) that a dump sets off; no interval is drawn, so that it takes milliseconds.

    Examples
    --------
    >>> alarms(simulated_dump(SeedTree("example")))
    []
    """
    records = fault_records(batch, batch.facts, [], unit_mean_scores(batch))
    return [record["check"] for record in records if record["fired"] and record["kind"] == "fault"]


def healthy_dump(stage: str, number: int, real: SegmentedBatch | None = None) -> SegmentedBatch:
    """Return the number-th healthy dump of a stage ("calibration" or "evaluation")."""
    seeds = ROOT[stage]["healthy" if real is None else "healthy real"][number]
    return simulated_dump(seeds) if real is None else drawn_from(real, seeds)


def false_alarms(stage: str, dumps: int, real: SegmentedBatch | None = None) -> dict[str, Any]:
    """Count the healthy dumps that set off a fault, all checks together and each."""
    counts: dict[str, int] = {}
    accused = []
    for number in range(dumps):
        found = alarms(healthy_dump(stage, number, real))
        accused += [number] * bool(found)
        for name in found:
            counts[name] = counts.get(name, 0) + 1
    bound = clopper_pearson(len(accused), dumps, level=0.9).high  # one-sided 95%
    return {"dumps": dumps, "accused": len(accused), "at_most": bound, "by_check": counts, "numbers": accused}


def power(
    stage: str, fault: str, strength: str, dumps: int, real: SegmentedBatch | None = None
) -> dict[str, Any] | None:
    """Count the faulty dumps that the fault's own detector names, and those that set off something."""
    named = noticed = made = 0
    for number in range(dumps):
        batch = planted(
            fault, strength, ROOT[stage][fault][strength]["real" if real is not None else "made"][number], real
        )
        if batch is None:
            return None
        made += 1
        own = next(f for f in findings(batch) if f["check"] == fault)["fired"]
        named += own
        noticed += own or bool(alarms(batch))
    return {"dumps": made, "named": named, "noticed": noticed, "at_least": clopper_pearson(named, made, level=0.9).low}


def study(
    stage: str = "evaluation", *, healthy: int = HEALTHY, real_healthy: int = REAL_HEALTHY, faulty: int = FAULTY
) -> dict[str, Any]:
    """Make the whole study; about five minutes on one core."""
    real = load_dump(partial_rollouts_path())
    record: dict[str, Any] = {
        "root": str(ROOT.root),
        "stage": stage,
        "budget": BUDGET,
        "healthy": {"simulated": false_alarms(stage, healthy), "real": false_alarms(stage, real_healthy, real)},
        "power": {},
    }
    for fault in DETECTORS:
        for strength in strengths(fault):
            rows = {
                "simulated": power(stage, fault, strength, faulty),
                "real": power(stage, fault, strength, faulty, real),
            }
            record["power"].setdefault(fault, {})[strength] = {name: row for name, row in rows.items() if row}
    return record


def docstring_lines(record: dict[str, Any], fault: str) -> list[str]:
    """Lines of a detector's docstring that state its measured rates."""
    lines = ["Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)", ""]
    for strength, rows in record["power"][fault].items():
        rates = ", ".join(f"{row['named']} of {row['dumps']} {name}" for name, row in rows.items())
        lines.append(f"* {strength}: {rates}")
    healthy = record["healthy"]
    kept = ", ".join(f"{part['by_check'].get(fault, 0)} of {part['dumps']} {name}" for name, part in healthy.items())
    return [*lines, f"* healthy: {kept}"]


def table(record: dict[str, Any]) -> str:
    """Return the study as text."""
    lines = []
    for fault in record["power"]:
        lines += [fault, *(f"  {line}" for line in docstring_lines(record, fault)[2:])]
    for name, part in record["healthy"].items():
        lines.append(
            f"any fault, healthy {name}: {part['accused']} of {part['dumps']}, at most {part['at_most']:.2%} ({part['by_check']})"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the study and write the record beside the detectors."""
    record = study()
    write_json_atomic(RECORD, record)
    sys.stdout.write(table(record) + "\n")


if __name__ == "__main__":
    main()
