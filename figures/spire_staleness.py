"""Reward against staleness, a panel for each rule, with what no correction earns behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS = ()
REPRODUCED, SCALES = "spire_staleness", ("tiny",)
ALONE, COLUMNS, GREY = "none", 4, "#8a8a8a"


def draw(records: list[Any], out: Path, name: str = "spire_staleness") -> list[Path]:
    """Draw interquartile means with 95 % intervals; numbers along the bottom count the runs that collapsed."""
    drawn = records[0]["result"]["curves"]
    rules = [rule for rule in drawn["rules"] if rule != ALONE]
    places, lags = list(range(len(drawn["staleness"]))), drawn["staleness"]
    rows = math.ceil(len(rules) / COLUMNS)
    with drawing("page", 1.55 * rows + 0.55, nrows=rows, ncols=COLUMNS, sharex=True, sharey=True, squeeze=False) as (
        figure,
        panels,
    ):
        for axes, rule in zip(panels.flat, rules, strict=False):
            other, own = drawn["rules"].get(ALONE), drawn["rules"][rule]
            if other:
                axes.plot(places, other["reward"], color=GREY, linestyle="--", lw=1.1)
            line = rule_line(rule)
            axes.fill_between(places, own["low"], own["high"], color=line.color, alpha=0.2, lw=0)
            axes.plot(places, own["reward"], color=line.color, marker="o", ms=3)
            for place, count in zip(places, own["collapsed"], strict=True):
                if count:
                    axes.text(place, 0.02, f"{count:g}", ha="center", va="bottom", fontsize=6.5)
            axes.set_title(rule, loc="left")
            axes.set(ylim=(0, 1.04), xticks=places)
            axes.set_xticklabels([str(lag) for lag in lags])
        for axes in list(panels.flat)[len(rules) :]:
            axes.set_axis_off()
        for column in range(COLUMNS):
            lowest = max(row for row in range(rows) if row * COLUMNS + column < len(rules))
            panels[lowest, column].tick_params(labelbottom=True)
        figure.supxlabel("updates between drawing a token and using it", fontsize=8)
        figure.supylabel("final reward", fontsize=8)
        note = f"solid: the rule, with its 95 % interval of {drawn['seeds']} seeds; dashed: no correction; numbers: collapsed runs"
        figure.suptitle(note, fontsize=7)
        return save(figure, name, records[0]["result"], out)
