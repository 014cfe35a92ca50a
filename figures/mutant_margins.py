"""By how much each mutant is caught: its margin over the tolerance of the check, theorem by theorem."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, save

RECORDS = ("verdicts.json",)
REQUIRED = 1e3  # a margin below this multiple of the tolerance does not count as caught
ABOVE = 100  # infinite margins are drawn this factor above the largest finite one
CAUGHT, SURVIVED = "#2066b6", "#d6561f"


def margins(verdicts: dict[str, Any]) -> dict[str, list[tuple[str, float, bool]]]:
    """Return theorem id -> (mutant, margin over tolerance, killed), leaving out what was not measured.

    Any margin but 0 over a tolerance of 0 is infinite.
    """
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
    if tolerance > 0:
        return abs(margin) / tolerance
    return math.inf if margin else 0.0


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one column of marks per theorem: a dot per mutant, a square for a survivor, a triangle for an infinite margin."""
    drawn = margins(records[0])
    finite = [height for points in drawn.values() for _, height, _ in points if math.isfinite(height)]
    top = ABOVE * max([REQUIRED, *finite])
    with drawing("page", 2.6) as (figure, axes):
        for place, points in enumerate(drawn.values()):
            for _, height, killed in points:
                infinite, color = math.isinf(height), CAUGHT if killed else SURVIVED
                axes.plot(
                    place,
                    top if infinite else max(height, 1e-3),
                    "^" if infinite else "o" if killed else "s",
                    ms=4 if infinite else 3,
                    mfc=color if killed else "none",
                    mec=color,
                    label="infinite" if infinite else "caught" if killed else "not caught",
                )
        axes.axhline(REQUIRED, color="black", linestyle="--", linewidth=0.8, label=f"needed: {_power(REQUIRED)}")
        axes.set(yscale="log", ylabel="margin / tolerance", xlim=(-1, max(len(drawn), 1)))
        axes.set_xticks(range(len(drawn)), list(drawn), rotation=90)
        axes.grid(axis="x", visible=False)
        marks = {mark.get_label(): mark for mark in axes.get_lines()}  # one entry for all marks of a kind
        figure.legend(marks.values(), marks.keys(), loc="outside upper right", ncols=len(marks))
        return save(figure, "mutant_margins", {"required": REQUIRED, "margins": drawn}, out)


def _power(value: float) -> str:
    return f"$10^{{{math.log10(value):.0f}}}$"
