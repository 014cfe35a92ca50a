"""By how much each mutant is caught: its margin over the tolerance of the check, theorem by theorem."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, save

RECORDS = ("verdicts.json",)
REQUIRED = 1e3  # a margin below this multiple of the tolerance does not count as caught
TOP = 1e18  # an infinite margin, or one over a tolerance of zero, is drawn here


def margins(verdicts: dict[str, Any]) -> dict[str, list[tuple[str, float, bool]]]:
    """Return theorem id -> (mutant, margin over tolerance, killed), leaving out what was not measured."""
    return {
        verdict["id"]: [
            (mutant["name"], _ratio(float(mutant["margin"]), float(verdict["tolerance"])), bool(mutant["killed"]))
            for mutant in verdict["mutants"]
            if mutant["margin"] is not None and not math.isnan(float(mutant["margin"]))
        ]
        for verdict in verdicts["verdicts"]
        if verdict["mutants"]
    }


def _ratio(margin: float, tolerance: float) -> float:
    return min(abs(margin) / tolerance, TOP) if tolerance > 0 else TOP


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one column of dots per theorem; a surviving mutant is an open square."""
    drawn = margins(records[0])
    with drawing("page", 2.6) as (figure, axes):
        for place, points in enumerate(drawn.values()):
            for _, height, killed in points:
                axes.plot(place, max(height, 1e-3), "o" if killed else "s", ms=3, mfc="#2066b6" if killed else "none",
                          mec="#2066b6" if killed else "#d6561f")  # fmt: skip
        axes.axhline(REQUIRED, color="black", linestyle="--", linewidth=0.8)
        axes.set(yscale="log", ylabel="margin / tolerance", xlim=(-1, max(len(drawn), 1)))
        axes.set_xticks(range(len(drawn)), list(drawn), rotation=90)
        axes.grid(axis="x", visible=False)
        return save(figure, "mutant_margins", {"required": REQUIRED, "margins": drawn}, out)
