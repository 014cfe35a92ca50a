"""A benchmark's record as a table: rates and ratios with their interquartile ranges."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section

RATIO = "ratio: times as fast as the first arm of its case, in the same run; in brackets the interquartile range over repeats"


def section_of(result: dict[str, Any], provenance: dict[str, Any]) -> Section:
    """Return the section that a record is printed as.

    Parameters
    ----------
    result : dict       of a benchmark's record
    provenance : dict   likewise
    """
    rows, remarks = [], []
    for case in result["cases"]:
        for number, (arm, found) in enumerate(case["arms"].items()):
            (low, rate, high), (least, ratio, most) = (map(quantity, found[name]) for name in ("rate", "ratio"))
            says = f"{rate} [{low}, {high}] {case['unit']}/s"
            rows.append(
                (case["name"] if not number else "", arm, says, f"{ratio} [{least}, {most}]" if number else "1")
            )
            if found["notes"]:
                remarks.append(f"{case['name']}, {arm}: {noted(found['notes'])}")
        if case["target"]:
            remarks.append(f"{case['name']}: the aim is {case['target']}")
    loads = [load for case in result["cases"] for load in case["load"]]
    says = (
        f"{RATIO}; {provenance['threads']} threads, {provenance['repeats']} repeats, load {min(loads)} to {max(loads)}"
    )
    return Section(
        title=f"{result['name']}: {result['title']}" + (" (smoke)" if result["smoke"] else ""),
        says=says + ".",
        header=("case", "arm", "rate", "ratio"),
        rows=rows,
        remarks=remarks,
        text=("case", "arm"),
    )


def noted(notes: dict[str, Any]) -> str:
    """Write notes in a line.

    Examples
    --------
    >>> noted({"tokens a round": 1.5, "share of time": {"passes": 0.75, "rest": 0.25}})
    'tokens a round 1.5; share of time: passes 0.75, rest 0.25'
    """
    return "; ".join(
        f"{name}: " + ", ".join(f"{part} {value}" for part, value in found.items())
        if isinstance(found, dict)
        else f"{name} {found}"
        for name, found in notes.items()
    )


def quantity(value: float) -> str:
    """Write a number with three digits and a thousands' or millions' letter.

    Examples
    --------
    >>> quantity(12.345), quantity(45678.0), quantity(2.5e7)
    ('12.3', '45.7k', '25M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
