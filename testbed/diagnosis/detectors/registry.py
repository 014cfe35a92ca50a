"""Every detector by name. Thresholds are fixed numbers: set on calibration streams, their error rates measured on others.

What the rates are about: dumps as `simulated_dumps` makes them (32 to 128 responses of 16 to 64 tokens, engine noise of a
dense model or a mixture of experts, up to four versions), and draws of the bundled rollouts. A sampler and a trainer that
agree to the last bit without any update are honest and not among them: `zero_variance` asks about those.
"""

from __future__ import annotations

import importlib
from typing import Any

from testbed.core.batch import SegmentedBatch

DETECTORS = ("shift_by_one", "temperature", "truncated_mass", "recomputed", "version_tags", "low_precision")
BUDGET = 0.002  # of a healthy dump setting off any fault: what the evaluation must stay below, with 95% confidence


def findings(batch: SegmentedBatch) -> list[dict[str, Any]]:
    """Ask every detector.

    Returns
    -------
    list of dict   check, kind ("fault" or "note"), fired, says ("" unless fired), ran (whether the batch has what the check
                   needs), why (it did not run; "" if it did), measured (name -> number; empty where the batch cannot tell)
    """
    records = []
    for name in DETECTORS:
        module = importlib.import_module(f"testbed.diagnosis.detectors.{name}")
        measured = module.measure(batch)
        says = module.verdict(measured) if measured else ""
        why = "" if says else module.why_not(batch)
        told = {"fired": bool(says), "says": says, "ran": not why, "why": why}
        records.append({"check": name, "kind": module.KIND, **told, "measured": measured})
    return records
