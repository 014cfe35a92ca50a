"""Effects of staleness, mismatch, replay, correction and learning rate, and their interactions, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_interaction", ("tiny",)
PANELS = {"raw": "effect on final reward", "size": "effect in standard deviations between seeds"}


def draw(records: list[Any], out: Path, name: str = "spire_interaction") -> list[Path]:
    """Draw main effects above interactions; filled dots are told from 0, rings are not."""
    drawn = records[0]["result"]["curves"]
    effects = drawn["effects"]
    places = list(range(len(effects)))[::-1]
    mains = sum(len(effect["factors"]) == 1 for effect in effects)
    with drawing("page", 0.19 * len(effects) + 1.1, ncols=2, sharey=True) as (figure, panels):
        for axes, (kind, label) in zip(panels, PANELS.items(), strict=True):
            axes.axvline(0, color="black", lw=0.8, zorder=1)
            axes.axhline(len(effects) - mains - 0.5, color="#8a8a8a", lw=0.6)
            for place, effect in zip(places, effects, strict=True):
                low, high = effect[f"{kind}_low"], effect[f"{kind}_high"]
                told = low > 0 or high < 0
                color = COLORS[3] if told else "#6b6b6b"
                axes.plot([low, high], [place, place], color=color, lw=1.6, solid_capstyle="butt")
                axes.plot([effect[kind]], [place], "o", ms=4, color=color, mfc=color if told else "white", zorder=3)
            axes.set(xlabel=label, ylim=(-0.7, len(effects) - 0.3), yticks=places)
            axes.set_yticklabels([effect["name"] for effect in effects])
        levels = ", ".join(f"{factor} {' → '.join(names)}" for factor, names in drawn["levels"].items())
        figure.suptitle(f"{levels}\n95 % intervals of {drawn['seeds']} seeds; filled: told from 0", fontsize=7)
        return save(figure, name, records[0]["result"], out)
