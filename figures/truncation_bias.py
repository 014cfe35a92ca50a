"""Bias and second moment of capped and masked weights, by range of the trainer's confidence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS = ("truncation_bias.json",)
REPRODUCED = "cis_fig5"  # records of the reproduction that hold such curves
LOOK: dict[str, tuple[str, str]] = {  # arm -> color, marker
    "TIS(2)": (COLORS[3], "s"), "TIS": (COLORS[3], "s"), "TIS(1.13)": (COLORS[5], "^"), "IcePop": (COLORS[1], "x"),
    "KPop": (COLORS[2], "+"), "CIS, odds": (COLORS[0], "o"), "CIS, linear": (COLORS[4], "D"),
    "CIS, loglinear": (COLORS[6], "v"),
}  # fmt: skip
LEAST = 1e-12  # an interval that reaches 0 is drawn down to here


def draw(records: list[Any], out: Path, name: str = "truncation_bias") -> list[Path]:
    """Draw -E[w - k] per range on a logarithmic axis, a panel per source; below it E[w^2] where the record has it."""
    drawn = records[0]["result"]
    rows = sum(1 + ("second moment by range" in curve) for curve in drawn["curves"].values())
    with drawing("column", 0.9 + 1.9 * rows, nrows=rows, squeeze=False, sharex=True) as (figure, grid):
        panels = iter(grid[:, 0])
        for source, curve in drawn["curves"].items():
            axes, arms = next(panels), [arm for arm in curve["arms"] if arm in LOOK]
            places = {arm: (k - (len(arms) - 1) / 2) * 0.13 for k, arm in enumerate(arms)}
            for arm in arms:
                _biases(axes, arm, places[arm], curve["bias by range"][arm])
            cut = [-float(one[0]) for arm in arms for one in curve["bias by range"][arm] if float(one[0]) < 0]
            axes.set(yscale="log", ylabel="cut off, E[k - w]", title=source)
            axes.set_ylim(*((min(cut) / 2, 3 * max(cut)) if cut else (LEAST, 1)))
            if not cut:
                axes.annotate("nothing is cut off in this sample", (0.5, 0.5), xycoords="axes fraction", ha="center")
            if "second moment by range" in curve:
                below = next(panels)
                for arm in arms:
                    at = [k + places[arm] for k in range(len(curve["ranges"]))]
                    below.plot(
                        at, curve["second moment by range"][arm], LOOK[arm][1], color=LOOK[arm][0], ms=4.5, mfc="none"
                    )
                below.axhline(1, color="#777777", linewidth=0.8, zorder=0)
                below.set(ylabel="second moment, E[w²]", title="exact ratio: infinite in every range")
            for ax in (axes,) if "second moment by range" not in curve else (axes, below):
                ax.set_xticks(range(len(curve["ranges"])), curve["ranges"], fontsize=6.2)
                ax.set_xlim(-0.5, len(curve["ranges"]) - 0.5)
                ax.grid(axis="x", visible=False)
                for edge in range(1, len(curve["ranges"])):
                    ax.axvline(edge - 0.5, color="#e4e4e4", linewidth=0.6, zorder=0)
        grid[-1, 0].set_xlabel("trainer's probability p of the drawn token")
        found = {
            text: handle for ax in grid[:, 0] for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=3)
        return save(figure, name, drawn, out)


def _biases(axes: Any, arm: str, shift: float, values: list[list[float]]) -> None:
    """One marker per range where something is cut off, with its interval where there is one."""
    color, marker = LOOK[arm]
    axes.plot([], [], marker, color=color, ms=4.5, mfc="none", linestyle="none", label=arm)
    for k, (value, low, high) in enumerate([map(float, triple) for triple in values]):
        if math.isnan(value) or value == 0:  # no token in the range, or none that the rule touches
            continue
        axes.plot([k + shift], [-value], marker, color=color, ms=4.5, mfc="none", linestyle="none")
        if low < high:
            axes.vlines(k + shift, max(-high, LEAST), -low, color=color, linewidth=1)
