"""Figures of the notebook on diagnosis, which draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from checked_panels import Picture
from small_pictures import small_picture

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREY = COLORS[0], COLORS[3], COLORS[4], "#888888"


def dump(
    odds: tuple[Any, Any], slope: float | None, ages: Mapping[int, Sequence[float]] | None, titles: Sequence[str]
) -> Picture:
    """Draw the displacement of every token against its log-odds with the fitted line; beside it drift by version tag.

    Parameters
    ----------
    odds : mean log-odds of trainer and sampler, and displacement, of each token
    slope : of the fitted line; None: not fitted
    ages : version tag -> mean log |displacement| of each response; None: no tags in this layout
    """
    with drawing("page", 2.7, ncols=2, width_ratios=(3, 2)) as (figure, (ax, drift)):
        middle, shift = (np.clip(x, -12, 12) for x in odds)
        ax.plot(middle, shift, ".", color=BLUE, markersize=2.5, alpha=0.4, rasterized=True)
        if slope is not None:
            ends = np.array([middle.min(), middle.max()])
            ax.plot(ends, shift.mean() + slope * (ends - middle.mean()), color=ORANGE, label="fitted line")
            ax.legend(loc="lower left")
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set(
            xlabel="log-odds of the token, mean of trainer and sampler", ylabel="displacement, nats", title=titles[0]
        )
        if ages is None:
            drift.text(0.5, 0.5, "this layout holds no versions", ha="center", transform=drift.transAxes)
            drift.set(xticks=[], yticks=[])
        for place, (_, sizes) in enumerate(sorted((ages or {}).items())):
            spread = np.linspace(-0.25, 0.25, len(sizes)) if len(sizes) > 1 else [0.0]
            drift.plot(place + np.array(spread), sizes, ".", color=(BLACK, ORANGE)[place % 2], markersize=3, alpha=0.6)
        if ages is not None:
            drift.set_xticks(range(len(ages)), [f"tagged {tag}" for tag in sorted(ages)])
            drift.set(xlim=(-0.6, len(ages) - 0.4), ylabel="mean log |displacement| of a response")
        drift.set_title(titles[1])
        return small_picture(figure)


def compared(
    finals: Mapping[str, Sequence[float]], gains: Mapping[str, tuple[float, float, float]], titles: Sequence[str]
) -> Picture:
    """Draw the final rewards of each arm, runs of one seed joined; beside them the differences from the first arm.

    Parameters
    ----------
    finals : arm -> final reward of each seed
    gains : arm -> difference and its interval
    """
    with drawing("page", 2.5, ncols=2) as (figure, (ax, gap)):
        names = list(finals)
        for runs in zip(*finals.values(), strict=True):
            ax.plot(range(len(names)), runs, "o-", color=BLUE, markersize=4, linewidth=0.7, alpha=0.7)
        ax.set_xticks(range(len(names)), names)
        ax.set(ylim=(0, 1), xlim=(-0.4, len(names) - 0.6), ylabel="final reward", title=titles[0])
        gap.axvline(0, color=GREY, linewidth=3, alpha=0.5)
        for place, (value, low, high) in enumerate(gains.values()):
            gap.plot([low, high], [place, place], color=BLACK, linewidth=2)
            gap.plot([value], [place], "o", color=BLACK, markersize=6)
        gap.set_yticks(range(len(gains)), list(gains))
        gap.set(
            ylim=(len(gains) - 0.5, -0.5),
            xlim=(-0.5, 0.5),
            xlabel="more than without the advice, by seed",
            title=titles[1],
        )
        return small_picture(figure)
