"""Final reward against CIS's threshold and floor, the paper's average accuracy above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS = ()
REPRODUCED, SCALES = "cis_fig6", ("tiny",)
AXES = {"lam": "threshold $\\lambda$", "kappa": "floor $\\kappa$"}
LOOKS = ((COLORS[3], "-", "o"), (COLORS[4], "--", "s"), (COLORS[5], ":", "^"))
APART = 0.14  # of the lines' markers, in steps of the axis


def draw(records: list[Any], out: Path, name: str = "threshold_and_floor") -> list[Path]:
    """Draw the paper's averages (bars: its standard deviation) over our interquartile means (bars: 95 % intervals)."""
    drawn = records[0]["result"]
    with drawing("page", 3.7, nrows=2, ncols=2, sharex="col", sharey="row") as (figure, panels):
        for column, (factor, label) in enumerate(AXES.items()):
            curve = drawn["curves"][factor]
            places = list(range(len(curve["levels"])))
            above, below = panels[0, column], panels[1, column]
            above.errorbar(
                places, curve["paper"], yerr=curve["paper sd"], color=COLORS[0], marker="D", ms=3.5, lw=1.1, capsize=2
            )
            shifts = [APART * (k - (len(curve["ours"]) - 1) / 2) for k in range(len(curve["ours"]))]
            for (color, dash, marker), shift, ours in zip(LOOKS, shifts, curve["ours"].values(), strict=False):
                at = [place + shift for place in places]
                below.vlines(at, ours["low"], ours["high"], color=color, lw=1)
                below.plot(at, ours["reward"], color=color, linestyle=dash, marker=marker, ms=3.5, label=ours["label"])
            for axes in (above, below):
                axes.axvspan(*_around(curve["levels"].index(curve["default"])), color="#ececec", lw=0, zorder=0)
            below.set_xticks(places, curve["levels"])
            below.set(xlabel=label, xlim=(-0.5, len(places) - 0.5), ylim=(0, 1.04))
        panels[0, 0].set(ylabel="paper: average, %", ylim=(0, 39))
        panels[1, 0].set_ylabel("ours: final reward")
        panels[0, 0].set_title("(a)", loc="left")
        panels[0, 1].set_title("(b)", loc="left")
        seeds = " and ".join(dict.fromkeys(str(curve["seeds"]) for curve in drawn["curves"].values()))
        note = f"grey: the paper's default; bars: the paper's standard deviation, our 95 % intervals of {seeds} seeds"
        handles, labels = panels[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, title=note, title_fontsize=7)
        return save(figure, name, drawn, out)


def _around(place: int) -> tuple[float, float]:
    return place - 0.32, place + 0.32
