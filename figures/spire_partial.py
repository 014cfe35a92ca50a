"""Reward of every rule under every way of writing responses: whole, in segments, and with boundaries that break the condition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_partial", ("tiny",)
COLUMNS, GREY, WHOLE = 5, "#8a8a8a", "whole"


def draw(records: list[Any], out: Path, name: str = "spire_partial") -> list[Path]:
    """Draw a panel for each way of sampling, its rules below each other; grey rings are the rule on whole responses."""
    drawn = records[0]["result"]["curves"]
    samplings = drawn["sampling"]
    rules = list(next(iter(samplings.values()))["rules"])
    rows = math.ceil(len(samplings) / COLUMNS)
    places = list(range(len(rules)))[::-1]
    least = min(rule["low"] for found in samplings.values() for rule in found["rules"].values())
    height = (0.17 * len(rules) + 0.55) * rows + 0.6
    layout = {"nrows": rows, "ncols": COLUMNS, "sharex": True, "sharey": True, "squeeze": False}
    with drawing("page", height, **layout) as (figure, panels):
        for axes, (sampling, found) in zip(panels.flat, samplings.items(), strict=False):
            for place, rule in zip(places, rules, strict=True):
                own, base = found["rules"][rule], samplings[WHOLE]["rules"][rule]
                color = rule_line(rule).color
                if sampling != WHOLE:
                    axes.plot([base["reward"]], [place], "o", ms=5, mfc="none", mec=GREY, mew=0.9)
                axes.plot([own["low"], own["high"]], [place, place], color=color, lw=1.4, solid_capstyle="butt")
                axes.plot([own["reward"]], [place], "o", ms=3.2, color=color)
            kind = "innocent: " if sampling in drawn["innocent"] else ""
            kind = "control: " if sampling in drawn["controls"] else kind
            shape = f"{found['segments']:.1f} segments, age {found['staleness']:.1f}"
            axes.set_title(f"{kind}{sampling}\n{shape}", loc="left", fontsize=7)
            axes.set(xlim=(max(0.0, least - 0.05), 1.03), ylim=(-0.6, len(rules) - 0.4), yticks=places)
            axes.set_yticklabels(rules)
        for axes in list(panels.flat)[len(samplings) :]:
            axes.set_axis_off()
        words = f"final reward, 95 % interval of {drawn['seeds']} seeds; rings: the same rule on whole responses"
        figure.supxlabel(words, fontsize=7.5)
        return save(figure, name, records[0]["result"], out)
