"""How often a detector finds a planted fault and accuses a healthy dump, as `power.json` records it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "power.json"
# what the healthy dumps were (`simulated_dumps`), and what notebook 10 found where they were staler: tests hold both to it
HEALTHY = "32 to 128 responses of 16 to 64 tokens, drawn at most 4 small updates ago"
STALER = "4 of 15 healthy batches that were 8 updates old were accused, 1 of 15 with that column"


@cache
def _study() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def measured_rates(check: str, kind: str = "fault") -> dict[str, Any] | None:
    """Return the rates of one detector, on simulated dumps.

    Parameters
    ----------
    kind : str   "fault" or "note"; a note accuses nobody, and its false alarms were not counted

    Returns
    -------
    dict   power (strength of the planted fault -> named, dumps), false_alarms (None for a note; accused by this detector;
           accused_by_any, fault or detector; dumps; at_most, the 95 % bound on the rate of accused_by_any); None for a
           check whose rates were not measured

    Examples
    --------
    >>> measured_rates("temperature")["power"]["T = 0.9"], measured_rates("clipped")
    ({'named': 97, 'dumps': 100}, None)
    """
    study = _study()
    planted = study.get("power", {}).get(check)
    if planted is None:
        return None
    power = {
        strength: {"named": found["simulated"]["named"], "dumps": found["simulated"]["dumps"]}
        for strength, found in planted.items()
    }
    healthy = study["healthy"]["simulated"]
    return {"power": power, "false_alarms": _false_alarms(healthy, check) if kind == "fault" else None}


def _false_alarms(healthy: dict[str, Any], check: str) -> dict[str, Any]:
    return {
        "accused": healthy["by_check"].get(check, 0),
        "accused_by_any": healthy["accused"],
        "dumps": healthy["dumps"],
        "at_most": healthy["at_most"],
    }
