"""Reward by the way responses are written, a panel for each rule; every way stands below its twin, which it is compared with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_partial", ("tiny",)
COLUMNS, GREY, GAP = 4, "#8a8a8a", 0.6
TWINS = {  # a way of writing that nothing else differs from -> what is compared with it
    "whole": ("two", "finished_first"),
    "same_age": ("many",),
    "split": ("resumed",),
    "blind": ("blind_1", "blind_5", "post_hoc", "overwritten", "rescored"),
}


def draw(records: list[Any], out: Path, name: str = "spire_partial") -> list[Path]:
    """Draw a panel for each rule, its rewards below each other; the grey line is the twin of what it passes through."""
    drawn = records[0]["result"]["curves"]
    samplings, controls = drawn["sampling"], drawn["controls"]
    rules = list(next(iter(samplings.values()))["rules"])
    rows = math.ceil(len(rules) / COLUMNS)
    places = places_of(list(samplings))
    least = min(rule["low"] for found in samplings.values() for rule in found["rules"].values())
    deepest, layout = max(places.values()), {"nrows": rows, "ncols": COLUMNS, "sharex": True, "sharey": True}
    with drawing("page", (0.15 * deepest + 0.5) * rows + 0.7, squeeze=False, **layout) as (figure, panels):
        for axes, rule in zip(panels.flat, rules, strict=False):
            color = rule_line(rule).color
            for twin, others in TWINS.items():
                group = [places[one] for one in (twin, *others) if one in places]
                if twin in places:
                    own = samplings[twin]["rules"][rule]["reward"]
                    axes.vlines(own, group[0], group[-1] + 0.35, color=GREY, lw=0.9, zorder=1)
            for sampling, place in places.items():
                own = samplings[sampling]["rules"][rule]
                look = (
                    {"marker": "D", "mfc": "white", "ms": 3.4} if sampling in controls else {"marker": "o", "ms": 3.6}
                )
                axes.plot([own["low"], own["high"]], [place] * 2, color=color, lw=1.5, solid_capstyle="butt")
                axes.plot([own["reward"]], [place], color=color, mew=1, zorder=3, **look)
            axes.set_title(rule, loc="left")
            axes.set(xlim=(max(0.0, least - 0.03), 1.02), ylim=(deepest + 0.7, -0.7))
            axes.set_yticks(list(places.values()), [f"{one}  {_shape(samplings[one])}" for one in places])
        for axes in list(panels.flat)[len(rules) :]:
            axes.set_axis_off()
        for axes in panels.flat[max(0, len(rules) - COLUMNS) : len(rules)]:
            axes.tick_params(labelbottom=True)
        figure.supxlabel(f"final reward, interquartile mean and 95 % interval of {drawn['seeds']} seeds", fontsize=8)
        _key(figure, panels[0, 0])
        return save(figure, name, records[0]["result"], out)


def places_of(samplings: list[str]) -> dict[str, float]:
    """Heights of the ways of writing from the top: twins together, a gap between groups, and last what has no twin.

    Examples
    --------
    >>> places_of(["two", "whole", "many", "same_age", "other"])
    {'whole': 0.0, 'two': 1.0, 'same_age': 2.6, 'many': 3.6, 'other': 5.2}
    """
    groups = [[one for one in (twin, *others) if one in samplings] for twin, others in TWINS.items()]
    known = [one for group in groups for one in group]
    places, height = {}, 0.0
    for group in [*groups, [one for one in samplings if one not in known]]:
        for one in group:
            places[one], height = round(height, 6), height + 1
        height += GAP * bool(group)
    return places


def _shape(found: dict[str, Any]) -> str:
    return f"({found['segments']:.1f}, {found['staleness']:.1f})"


def _key(figure: Any, axes: Any) -> None:
    """Say what marks are."""
    marks = {"marker": "o", "ms": 3.6}, {"marker": "D", "ms": 3.4, "mfc": "white", "mew": 1}
    handles = [axes.plot([], [], " ", color="black", **look)[0] for look in marks]
    handles.append(axes.plot([], [], color=GREY, lw=0.9)[0])
    words = ["innocent", "control", "reward of the first in the group"]
    title = "in brackets: segments of a response, and age of its oldest token in updates"
    figure.legend(handles, words, loc="outside upper center", ncols=3, title=title, title_fontsize=7)
