"""Reward against staleness, a panel for each rule, with what no correction earns behind it; a figure for each rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_staleness", ("tiny",)
ALONE, COLUMNS, GREY = "none", 4, "#8a8a8a"
RULE = {"color": COLORS[3], "linestyle": "-", "lw": 1.4}  # of all: the panel's title says which
NONE = {"color": GREY, "linestyle": "--", "lw": 1.1}  # the same in its own panel as behind the others
STUDY, FAST = "staleness", "staleness_fast"  # the second is in the curves of the first
STRIP = 0.14  # of reward, below 0: there collapses are counted, where no line can be


def draw(records: list[Any], out: Path, name: str = "spire_staleness") -> list[Path]:
    """Draw a figure for each study: interquartile means with 95 % intervals, and below them the runs that collapsed."""
    result = records[0]["result"]
    first = {key: value for key, value in result["curves"].items() if key != FAST}
    fast = result["curves"][FAST]
    written = _draw_one(result, first, _title(STUDY, "", first), out, name)
    return written + _draw_one(result, fast, _title(FAST, " at a faster learning rate", fast), out, f"{name}_fast")


def _title(study: str, where: str, drawn: dict[str, Any]) -> str:
    words = f"Final reward against staleness{where}: one rule in each panel, beside training without correction"
    return f"{words}\n(study {study}, {len(drawn['rules'])} rules, {drawn['seeds']} seeds)"


def _draw_one(result: dict[str, Any], drawn: dict[str, Any], title: str, out: Path, name: str) -> list[Path]:
    rules, lags = drawn["rules"], drawn["staleness"]
    places, rows = list(range(len(lags))), math.ceil((len(rules) + 1) / COLUMNS)
    layout = {"nrows": rows, "ncols": COLUMNS, "sharex": True, "sharey": True, "squeeze": False}
    with drawing("page", 1.5 * rows + 0.6, **layout) as (figure, panels):
        for axes, (rule, own) in zip(panels.flat, rules.items(), strict=False):
            look = NONE if rule == ALONE else RULE
            if ALONE in rules and rule != ALONE:
                axes.plot(places, rules[ALONE]["reward"], **NONE)
            axes.fill_between(places, own["low"], own["high"], color=look["color"], alpha=0.25, lw=0)
            axes.plot(places, own["reward"], marker="o", ms=3, **look)
            for place, count in zip(places, own["collapsed"], strict=True):
                if count:
                    axes.text(place, -STRIP / 2, f"{count:g}", ha="center", va="center", fontsize=6.5)
            axes.set_title(rule, loc="left", fontweight="bold")
            axes.set(xlim=(-0.4, len(lags) - 0.6), ylim=(-STRIP, 1.04))
            axes.set_xticks(places, [str(lag) for lag in lags])
            axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        left = list(panels.flat)[len(rules) :]
        for axes in left:
            axes.set_axis_off()
        for column in range(COLUMNS):
            lowest = max(row for row in range(rows) if row * COLUMNS + column < len(rules))
            panels[lowest, column].tick_params(labelbottom=True)
        _key(left[-1], drawn["seeds"])
        figure.supxlabel("updates between drawing a token and using it", fontsize=8)
        figure.supylabel("final reward, interquartile mean", fontsize=8)
        figure.suptitle(title, fontsize=8)
        return save(figure, name, {**result, "curves": drawn}, out)


def _key(axes: Any, seeds: int) -> None:
    """Say in a panel without a rule what the others show."""
    axes.plot([], [], marker="o", ms=3, label="the panel's rule", **RULE)
    axes.fill_between([], [], [], color=RULE["color"], alpha=0.25, lw=0, label="95 % interval")
    axes.plot([], [], label=f"no correction ({ALONE})", **NONE)
    axes.plot([], [], " ", marker="$7$", color="black", ms=4.5, mew=0.3, label=f"runs of {seeds} that collapsed")
    axes.legend(loc="center left", borderaxespad=0)
