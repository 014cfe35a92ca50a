"""The checks of a recording as a reader meets them: what fired, how far to trust it, what was quiet."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section
from testbed.diagnosis.detectors.rates import HEALTHY, STALER


def checks_section(faults: list[dict[str, Any]], layout: str | None = None) -> Section:
    """Section of the records `fault_records` returns; `layout` is the name of the dump's format."""
    missed = [
        f for f in faults if not f.get("ran", True)
    ]  # records written before there was a third state lack the key
    asked = [f["kind"] for f in faults if f.get("ran", True)]
    made, unmade = asked.count("fault"), sum(f["kind"] == "fault" for f in missed)
    apart = f"; {unmade} not checked" if unmade else ""
    broken = [f for f in faults if f["fired"] and f["kind"] == "fault"]
    notes = [f for f in faults if f["fired"] and f["kind"] == "note"]
    if broken:
        says = f"Look at the recording before the rest: {len(broken)} of {made} checks failed{apart}."
    else:
        noted = f"; {len(notes)} of {asked.count('note')} notes on the data" if notes else ""
        says = (
            f"No sign of a recording fault in {made} {'check' if made == 1 else 'checks'}{apart}{noted}."
            if made > unmade
            else f"Too little to tell whether the recording is right: {made} of {made + unmade} checks could be made, and "
            f"found nothing{noted}."
        )
    remarks = [f"FAULT {f['check']}: {f['says']}.{_alignment(f, layout)}{_rates(f)}" for f in broken]
    remarks += [f"note {f['check']}: {f['says']}.{_rates(f)}" for f in notes]
    if missed:
        remarks.append("Not checked: " + ", ".join(f"{f['check']} ({f['why']})" for f in missed) + ".")
    quiet = ", ".join(f["check"] for f in faults if not f["fired"] and f not in missed)
    if quiet:
        remarks.append(f"Quiet: {quiet}.")
    return Section(title="CHECKS", says=says, remarks=[*remarks, *_all_rates([f for f in faults if f not in missed])])


def _alignment(fault: dict[str, Any], layout: str | None) -> str:
    if fault["check"] != "shift_by_one" or layout != "areal":
        return ""
    return (
        " An AReaL dump is read as aligned by `compute_advantages` if it has `advantages`, else as a workflow returns it: "
        "was that column added to or left out of this file?"
    )


def _counted(rates: list[dict[str, Any]]) -> str:
    """Say the range of power over strengths of planted faults."""
    named = [100 * found["named"] / found["dumps"] for each in rates for found in each["power"].values()]
    low, high = min(named), max(named)
    return f"{high:.0f}%" if low == high else f"{low:.0f} to {high:.0f}%"


def _rates(fault: dict[str, Any]) -> str:
    rates = fault.get("rates")
    if rates is None:
        return ""
    alarms = rates["false_alarms"]
    false = (
        ""
        if alarms is None
        else f"; false alarms {alarms['accused']} of {alarms['dumps']} healthy simulated dumps, none of them very stale"
    )
    return f" (Power {_counted([rates])}{false}.)"


def _all_rates(faults: list[dict[str, Any]]) -> list[str]:
    """Say the rates of the detectors that ran, and of which dumps they are the rates."""
    measured = [f["rates"] for f in faults if f.get("rates") is not None]
    alarms = next((rates["false_alarms"] for rates in measured if rates["false_alarms"] is not None), None)
    if alarms is None:
        return []
    return [
        f"detectors: power {_counted(measured)} of planted faults named, by kind and strength; false alarms "
        f"{alarms['accused_by_any']} of {alarms['dumps']} healthy simulated dumps, all faults together ({HEALTHY}). More "
        f"staleness raises false alarms, without `logp_proximal` most: in notebook 10, {STALER}. Each detector's rates are in "
        "the JSON record; the power of the other checks was not measured."
    ]
