"""Reward against compute by share of replay, and at equal compute against the share, with the predicted share marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_replay", ("tiny",)
LOOK = {"uniform": (COLORS[3], "-", "o"), "success": (COLORS[4], "--", "s")}
WORDS = {"uniform": "uniform replay", "success": "replay of successes"}


def draw(records: list[Any], out: Path, name: str = "spire_replay") -> list[Path]:
    """Draw a row for each rule; whiskers are 95 % intervals, the vertical line and band the predicted share and its interval."""
    drawn = records[0]["result"]["curves"]
    rules = drawn["rules"]
    with drawing("page", 2.35 * len(rules) + 0.35, nrows=len(rules), ncols=2, sharey="row", squeeze=False) as (
        figure,
        panels,
    ):
        for (left, right), (rule, found) in zip(panels, rules.items(), strict=True):
            for kind, (color, dash, marker) in LOOK.items():
                _whiskers(left, found[kind], "compute", ("reward", "low", "high"), color, dash, marker, WORDS[kind])
                _whiskers(
                    right,
                    found[kind],
                    "share",
                    ("at_budget", "budget_low", "budget_high"),
                    color,
                    dash,
                    marker,
                    WORDS[kind],
                )
            _numbers(left, found["uniform"], (4, -9), "left", LOOK["uniform"][0])
            _numbers(left, found["success"][1:], (-4, 4), "right", LOOK["success"][0])
            ring = {"marker": "o", "ms": 9, "mfc": "none", "mec": "black", "mew": 1.2, "linestyle": "none", "zorder": 4}
            left.plot([found["predicted_compute"]], [found["predicted_reward"]], label="predicted share", **ring)
            ends = (found["predicted_low"], found["predicted_high"])
            right.axvspan(*ends, color="#dddddd", lw=0, zorder=0, label="95 % interval of that share")
            right.axvline(found["predicted"], color="black", lw=1, zorder=1)
            near = "right" if found["predicted"] > 0.5 else "left"
            shift = -3 if near == "right" else 3
            right.annotate(
                f"predicted {found['predicted']:.2f}", (found["predicted"], 0.03), (shift, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha=near, fontsize=7,
            )  # fmt: skip
            left.set(xlabel=f"simulated seconds of {found['updates']} updates", ylabel=f"reward, rule {rule}")
            left.set_title(f"equal updates ({found['updates']}); numbers are shares", loc="left")
            right.set_title(f"equal compute ({found['budget']:.0f} simulated seconds)", loc="left")
            right.set(xlabel="share of replay", xlim=(-0.03, 0.97))
            left.margins(x=0.09)
        shown = dict(zip(*panels[0, 0].get_legend_handles_labels()[::-1], strict=True))
        shown |= {k: v for v, k in zip(*panels[0, 1].get_legend_handles_labels(), strict=True) if k not in shown}
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4, columnspacing=1.2)
        return save(figure, name, records[0]["result"], out)


def _whiskers(
    axes: Any, points: list[Any], x: str, names: tuple[str, str, str], color: str, dash: str, marker: str, label: str
) -> None:
    """A line through points, and their intervals."""
    middle, low, high = names
    places, heights = [point[x] for point in points], [point[middle] for point in points]
    below = [max(0.0, point[middle] - point[low]) for point in points]
    above = [max(0.0, point[high] - point[middle]) for point in points]
    axes.errorbar(
        places,
        heights,
        [below, above],
        color=color,
        linestyle=dash,
        marker=marker,
        ms=3.5,
        lw=1.1,
        elinewidth=0.9,
        label=label,
    )


def _numbers(axes: Any, points: list[Any], shift: tuple[int, int], side: str, color: str) -> None:
    """Write each point's share beside it."""
    for point in points:
        place = (point["compute"], point["reward"])
        axes.annotate(
            f"{point['share']:g}", place, shift, textcoords="offset points", ha=side, fontsize=6.5, color=color
        )
