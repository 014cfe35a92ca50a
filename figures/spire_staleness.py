"""Reward against staleness, a panel for each rule, with what no correction earns behind it; a figure for each rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_staleness", ("tiny",)
ALONE, COLUMNS, GREY = "none", 4, "#8a8a8a"
STUDY, FAST = "staleness", "staleness_fast"  # the second is in the curves of the first
STRIP = 0.14  # of reward, below 0: there collapses are counted, where no line can be


def draw(records: list[Any], out: Path, name: str = "spire_staleness") -> list[Path]:
    """Draw a figure for each study: interquartile means with 95 % intervals, and below them the runs that collapsed."""
    result = records[0]["result"]
    first = {key: value for key, value in result["curves"].items() if key != FAST}
    written = _draw_one(result, first, STUDY, out, name)
    return written + _draw_one(result, result["curves"][FAST], f"{FAST}, at a faster rate", out, f"{name}_fast")


def _draw_one(result: dict[str, Any], drawn: dict[str, Any], title: str, out: Path, name: str) -> list[Path]:
    rules, lags = drawn["rules"], drawn["staleness"]
    places, rows = list(range(len(lags))), math.ceil((len(rules) + 1) / COLUMNS)
    layout = {"nrows": rows, "ncols": COLUMNS, "sharex": True, "sharey": True, "squeeze": False}
    with drawing("page", 1.5 * rows + 0.6, **layout) as (figure, panels):
        for axes, (rule, own) in zip(panels.flat, rules.items(), strict=False):
            color = rule_line(rule).color
            if ALONE in rules and rule != ALONE:
                axes.plot(places, rules[ALONE]["reward"], color=GREY, linestyle="--", lw=1.1)
            axes.fill_between(places, own["low"], own["high"], color=color, alpha=0.25, lw=0)
            axes.plot(places, own["reward"], color=color, marker="o", ms=3)
            for place, count in zip(places, own["collapsed"], strict=True):
                if count:
                    axes.text(place, -STRIP / 2, f"{count:g}", ha="center", va="center", fontsize=6.5)
            axes.set_title(rule, loc="left")
            axes.set(xlim=(-0.4, len(lags) - 0.6), ylim=(-STRIP, 1.04))
            axes.set_xticks(places, [str(lag) for lag in lags])
            axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
        left = list(panels.flat)[len(rules) :]
        for axes in left:
            axes.set_axis_off()
        for column in range(COLUMNS):
            lowest = max(row for row in range(rows) if row * COLUMNS + column < len(rules))
            panels[lowest, column].tick_params(labelbottom=True)
        _key(left[-1], drawn["seeds"])
        figure.supxlabel("updates between drawing a token and using it", fontsize=8)
        figure.supylabel("final reward, interquartile mean", fontsize=8)
        figure.suptitle(f"study {title}", fontsize=8)
        return save(figure, name, {**result, "curves": drawn}, out)


def _key(axes: Any, seeds: int) -> None:
    """Say in a panel without a rule what the others show."""
    axes.plot([], [], color="black", marker="o", ms=3, label=f"the rule, {seeds} seeds")
    axes.fill_between([], [], [], color="black", alpha=0.25, lw=0, label="95 % interval")
    axes.plot([], [], color=GREY, linestyle="--", lw=1.1, label="no correction")
    axes.plot([], [], " ", marker="$7$", color="black", ms=4.5, mew=0.3, label="runs that collapsed")
    axes.legend(loc="center left", borderaxespad=0)
