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
LEAST, ROUNDING = 1e-12, 1e-15  # an interval that reaches 0 is drawn down to the first; nothing is below the second


def draw(records: list[Any], out: Path, name: str = "truncation_bias") -> list[Path]:
    """Draw -E[w - k] per range on a logarithmic axis, a panel per source; below it E[w^2] where the record has it."""
    drawn = records[0]["result"]
    panels = [(part, source, curve) for source, curve in drawn["curves"].items() for part in _parts(curve)]
    with drawing("column", 0.9 + 1.9 * len(panels), nrows=len(panels), squeeze=False, sharex=True) as (figure, grid):
        for axes, (part, source, curve) in zip(grid[:, 0], panels, strict=True):
            arms = [arm for arm in curve["arms"] if arm in LOOK]
            places = {arm: (k - (len(arms) - 1) / 2) * 0.13 for k, arm in enumerate(arms)}
            if part == "bias by range":
                axes.set(yscale="log", ylabel="cut off, E[k - w]", title=source)
                _biases(axes, places, curve[part])
            else:
                axes.set(ylabel="second moment, E[w²]", title="exact ratio: infinite in every range")
                _moments(axes, places, curve[part])
            axes.set_xticks(range(len(curve["ranges"])), curve["ranges"], fontsize=6.2)
            axes.set_xlim(-0.5, len(curve["ranges"]) - 0.5)
            axes.grid(axis="x", visible=False)
            for edge in range(1, len(curve["ranges"])):
                axes.axvline(edge - 0.5, color="#e4e4e4", linewidth=0.6, zorder=0)
        grid[-1, 0].set_xlabel("trainer's probability p of the drawn token")
        labeled = [pair for ax in grid[:, 0] for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
        found = {text: handle for handle, text in labeled}
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=3)
        return save(figure, name, drawn, out)


def _parts(curve: dict[str, Any]) -> list[str]:
    return [part for part in ("bias by range", "second moment by range") if part in curve]


def _biases(axes: Any, places: dict[str, float], biases: dict[str, list[list[float]]]) -> None:
    """One marker per arm and range where something is cut off, with its interval where there is one."""
    sizes = []
    for arm, shift in places.items():
        color, marker = LOOK[arm]
        look = {"color": color, "ms": 4.5, "mfc": "none", "linestyle": "none"}
        axes.plot([], [], marker, label=arm, **look)
        for k, (value, low, high) in enumerate([map(float, triple) for triple in biases[arm]]):
            if math.isnan(value) or value > -ROUNDING:  # no token in the range, or none that the rule touches
                continue
            sizes.append(-value)
            axes.plot([k + shift], [-value], marker, **look)
            if low < high:
                axes.vlines(k + shift, max(-high, LEAST), -low, color=color, linewidth=1)
    axes.set_ylim(*((min(sizes) / 2, 3 * max(sizes)) if sizes else (LEAST, 1)))
    if not sizes:
        axes.annotate("nothing is cut off in this sample", (0.5, 0.5), xycoords="axes fraction", ha="center")


def _moments(axes: Any, places: dict[str, float], moments: dict[str, list[float]]) -> None:
    """One marker per arm and range."""
    for arm, shift in places.items():
        color, marker = LOOK[arm]
        at = [k + shift for k in range(len(moments[arm]))]
        axes.plot(at, moments[arm], marker, color=color, ms=4.5, mfc="none", linestyle="none")
    axes.axhline(1, color="#777777", linewidth=0.8, zorder=0)
