"""Mean squared error against the replay share: one panel per regime of the optimum, with the price of what binds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import drawing, save

RECORDS = ("mse_vs_share.json",)
TITLES = {
    "interior": "interior optimum",
    "none": "no replay",
    "all": "all replay",
    "tie": "bends down: the ends tie",
    "cost_bound": "ceiling on cost binds",
    "pool_bound": "pool of replay binds",
}
MULTIPLIERS = {
    "at_least_0": "price of $a \\geq 0$",
    "at_most_1": "price of $a \\leq 1$",
    "cost_cap": "price of the ceiling",
    "pool": "price of the pool",
}


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw the error over its value without replay; shares that a constraint rules out are shaded."""
    drawn = records[0]["result"]
    with drawing("column", 5.4, nrows=3, ncols=2, sharex=True) as (figure, panels):
        for axes, case in zip(panels.flat, drawn["regimes"], strict=True):
            unit = case["mse"][0]
            axes.plot(drawn["share"], [value / unit for value in case["mse"]], color="black")
            for start, stop in ((0, case["low"]), (case["high"], 1)):
                axes.axvspan(start, stop, color="#dddddd", lw=0, zorder=0)
            for at in filter(None, (case["best"], case["other"])):
                axes.plot(at["share"], at["mse"] / unit, "o", ms=5, color="#2066b6", clip_on=False, zorder=3)
            if case["worst"]:
                axes.plot(case["worst"]["share"], case["worst"]["mse"] / unit, "x", ms=6, mew=1.5, color="#d6561f")
            held = [f"{MULTIPLIERS[name]}: {value:.2g}" for name, value in case["multipliers"].items() if value > 0]
            name = TITLES.get(case["regime"], case["regime"])
            axes.set_title("\n".join([name, *(held or ["no constraint binds"])]), fontsize=7.5)
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        for axes in panels[:, 0]:
            axes.set_ylabel("error / without replay")
        for axes in panels[-1]:
            axes.set_xlabel("replay share $a$")
        return save(figure, "mse_vs_share", drawn, out)
