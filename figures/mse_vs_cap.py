"""Exact mean squared error against the cap, with the exact, second-moment and chi-square choices marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS = ("mse_vs_cap.json",)
TITLES = {
    "log_normal_1p2": "log-normal weight, sd 1.2 of its log",
    "two_point_0p9_30": "two-point weight: 0.9, rarely 30",
    "recorded_stale": "one token under a stale checkpoint",
}
LINES = dict(zip((16, 64, 256), ((COLORS[0], "-"), (COLORS[3], "--"), (COLORS[4], ":")), strict=True))
MARKS = {"exact": ("o", "exact optimum"), "d2": ("s", "from $d_2$ alone"), "chi2": ("^", "from $\\chi^2$ alone")}


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one panel per law and one line per number of draws."""
    drawn = records[0]["result"]
    laws = list(dict.fromkeys(curve["law"] for curve in drawn["curves"]))
    with drawing("column", 6.0, nrows=len(laws), sharex=True) as (figure, panels):
        for axes, law in zip(panels, laws, strict=True):
            for curve in (c for c in drawn["curves"] if c["law"] == law):
                color, dash = LINES[curve["n"]]
                axes.plot(drawn["cap"], curve["mse"], color=color, linestyle=dash, label=f"n = {curve['n']}")
                for method, (marker, label) in MARKS.items():
                    at = curve["marks"][method]
                    axes.plot(at["cap"], at["mse"], marker, ms=5, mfc="none", mec=color, mew=1.1,
                              label=label if color == COLORS[0] else None)  # fmt: skip
            axes.set(xscale="log", yscale="log", ylabel="mean squared error", title=TITLES.get(law, law))
        panels[-1].set_xlabel("cap")
        panels[-1].set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64], ["0.5", "1", "2", "4", "8", "16", "32", "64"])
        panels[-1].minorticks_off()
        found = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
        order = [name for name in found if name.startswith("n =")] + [label for _, label in MARKS.values()]
        figure.legend([found[name] for name in order], order, loc="outside lower center", ncols=2)
        return save(figure, "mse_vs_cap", drawn, out)
