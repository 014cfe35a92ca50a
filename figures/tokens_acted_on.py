"""Tokens that each operator keeps, truncates or masks, early, in the middle and late in one run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from figures.style import COLORS, drawing, save

RECORDS = ()
REPRODUCED, SCALES = "cis_fig12", ("tiny",)
KEPT = {"color": COLORS[3], "marker": ".", "ms": 2.8, "mew": 0, "alpha": 0.45}
ACTED = {"color": COLORS[4], "marker": "x", "ms": 2.8, "mew": 0.8}
LEAST, MOST = 1e-5, 6.0  # doubt is drawn from the first up; log ratios to +- the second; beyond, on the edge


def draw(records: list[Any], out: Path, name: str = "tokens_acted_on") -> list[Path]:
    """Draw a row per operator and a column per time; titles give the share acted on."""
    drawn = records[0]["result"]
    arms = drawn["curves"]
    times = list(next(iter(arms.values()))["panels"])
    with drawing(
        "page", 1.55 * len(arms) + 0.5, nrows=len(arms), ncols=len(times), sharex=True, sharey=True, squeeze=False
    ) as (
        figure,
        grid,
    ):
        for row, (letter, arm) in zip(grid, zip("abcdefgh", arms.values(), strict=False), strict=True):
            for axes, time in zip(row, times, strict=True):
                _panel(axes, arm["panels"][time])
                first, last = arm["panels"][time]["updates"]
                axes.set_title(
                    f"updates {first}-{last}: {100 * arm['panels'][time]['share']:.1f} % acted on", fontsize=7
                )
                for bound in bounds(arm["rule"], arm["params"]):
                    axes.plot(DOUBT, np.clip(bound, -MOST, MOST), color="#555555", lw=0.8, ls="--")
            row[0].set_ylabel(f"({letter}) {arm['name']}\n$\\log k$")
        for axes in grid[-1]:
            axes.set_xlabel("$1 - p$")
        grid[0, 0].set(xscale="log", xlim=(LEAST, 1.2), ylim=(-MOST * 1.06, MOST * 1.06))
        handles = [grid[0, 0].plot([], [], linestyle="", **look | {"ms": 5, "alpha": 1})[0] for look in (KEPT, ACTED)]
        handles += [grid[0, 0].plot([], [], color="#555555", lw=0.8, ls="--")[0]]
        words = ["left alone", "truncated or masked", "bound of the operator"]
        figure.legend(handles, words, loc="outside lower center", ncols=3)
        return save(figure, name, drawn, out)


DOUBT = np.geomspace(LEAST, 1 - 1e-6, 200)


def bounds(rule: str, params: dict[str, float]) -> list[np.ndarray]:
    """Log ratios beyond which an operator acts, by doubt 1 - p.

    Examples
    --------
    >>> [float(bound[0]) for bound in bounds("tis", {"cap": 1.0})]
    [0.0]
    """
    flat = np.ones_like(DOUBT)
    if rule == "tis":
        return [math.log(params["cap"]) * flat]
    if rule == "icepop":
        return [math.log(params[end]) * flat for end in ("low", "high")]
    if rule == "cis":
        return [np.log1p(np.maximum(DOUBT, params["floor"]) * math.expm1(params["lam"]))]
    return []


def _panel(axes: Any, panel: dict[str, Any]) -> None:
    doubt, log_k, acted = (np.array(panel[name], dtype=float) for name in ("doubt", "log k", "acted"))
    for value, look, order in ((0, KEPT, 2), (1, ACTED, 3)):
        chosen = acted == value
        x, y = np.maximum(doubt[chosen], LEAST), np.clip(log_k[chosen], -MOST, MOST)
        axes.plot(x, y, linestyle="", zorder=order, rasterized=True, **look)
