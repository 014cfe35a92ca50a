"""Reward against compute by share of replay, and at equal compute against the share, with the predicted shares marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED, SCALES = "spire_replay", ("tiny",)
WORDS = {"uniform": "uniform replay", "success": "replay of successes"}
LOOK = {
    "uniform": {"color": COLORS[3], "linestyle": "-", "marker": "o"},
    "success": {"color": COLORS[4], "linestyle": "--", "marker": "s"},
}
WHISKER = {
    "uniform": {"lw": 1.0},
    "success": {"lw": 3.0, "alpha": 0.35},
}  # thin and wide: both are seen where they meet
PREFIX = {"uniform": "", "success": "success_"}  # of a predicted share's names
NUMBERS = {"uniform": 0.03, "success": 0.95}  # height of the shares' numbers, as a part of the panel
MARKS = {"uniform": 0.15, "success": 0.04}  # height of the predicted shares' intervals
NEAR = 0.06  # numbers nearer to each other than this part of the panel would overlap
RING = {"ms": 9, "mfc": "none", "mec": "black", "mew": 1.2, "linestyle": "none", "zorder": 4}


def draw(records: list[Any], out: Path, name: str = "spire_replay") -> list[Path]:
    """Draw a row for each rule: equal updates at the left, equal compute at the right."""
    drawn = records[0]["result"]["curves"]
    rules = drawn["rules"]
    layout = {"nrows": len(rules), "ncols": 2, "sharey": "row", "squeeze": False}
    with drawing("page", 2.35 * len(rules) + 0.5, **layout) as (figure, panels):
        for (left, right), (rule, found) in zip(panels, rules.items(), strict=True):
            low, high = _ends(found)
            left.set_ylim(low - 0.3 * (high - low), high + 0.15 * (high - low))  # the edges are for numbers and marks
            left.set_xlim(*_wide([point["compute"] for kind in WORDS for point in found[kind]]))
            right.set_xlim(-0.03, 1.03)
            for kind in WORDS:
                _curve(left, found[kind], "compute", ("reward", "low", "high"), kind)
                _curve(right, found[kind], "share", ("at_budget", "budget_low", "budget_high"), kind)
                _numbers(left, found[kind], kind)
                if f"{PREFIX[kind]}predicted" in found:
                    _predicted(left, right, found, kind)
            left.set(xlabel=f"simulated seconds of {found['updates']} updates", ylabel=f"reward, rule {rule}")
            left.set_title(f"equal updates ({found['updates']}); numbers are shares", loc="left")
            right.set_title(f"equal compute ({found['budget']:.0f} simulated seconds)", loc="left")
            right.set(xlabel="share of replay")
        _key(figure, panels[0, 0], drawn["seeds"])
        return save(figure, name, records[0]["result"], out)


def _ends(found: dict[str, Any]) -> tuple[float, float]:
    """Least and largest end of the intervals of a rule."""
    points = [point for kind in WORDS for point in found[kind]]
    low = min(min(point["low"], point["budget_low"]) for point in points)
    high = max(max(point["high"], point["budget_high"]) for point in points)
    return low, max(high, low + 0.01)


def _wide(values: list[float]) -> tuple[float, float]:
    room = 0.05 * (max(values) - min(values)) or 1.0
    return min(values) - room, max(values) + room


def _curve(axes: Any, points: list[Any], x: str, names: tuple[str, str, str], kind: str) -> None:
    """A line through points, and their intervals."""
    middle, low, high = ([point[name] for point in points] for name in names)
    places = [point[x] for point in points]
    axes.vlines(places, low, high, color=LOOK[kind]["color"], zorder=1.5, **WHISKER[kind])
    axes.plot(places, middle, ms=3.5, lw=1.1, **LOOK[kind])


def _numbers(axes: Any, points: list[Any], kind: str) -> None:
    """Write each point's share above or below it at the panel's edge, but for those that would overlap."""
    low, high = axes.get_xlim()
    written: list[float] = []
    for point in points:
        if all(abs(point["compute"] - other) >= NEAR * (high - low) for other in written):
            written.append(point["compute"])
            axes.text(
                point["compute"], NUMBERS[kind], f"{point['share']:g}", transform=axes.get_xaxis_transform(), ha="center",
                va="center", fontsize=6.5, color=LOOK[kind]["color"],
            )  # fmt: skip


def _predicted(left: Any, right: Any, found: dict[str, Any], kind: str) -> None:
    """Ring the predicted share at the left; at the right a line down to its interval."""
    look, names = LOOK[kind], ("", "_low", "_high", "_reward", "_compute")
    at = {name: found[f"{PREFIX[kind]}predicted{name}"] for name in names}
    left.plot([at["_compute"]], [at["_reward"]], marker=look["marker"], **RING)
    fraction, height = right.get_xaxis_transform(), MARKS[kind]
    right.axvline(at[""], height, color=look["color"], linestyle=look["linestyle"], lw=0.8, zorder=1)
    right.hlines(height, at["_low"], at["_high"], transform=fraction, color=look["color"], lw=2.2)
    right.plot(
        [at[""]], [height], marker=look["marker"], ms=4, color=look["color"], mec="black", mew=0.7, transform=fraction
    )
    after = at[""] < 0.7  # above the interval, beside the line; white, because the other kind's line may pass there
    right.annotate(
        f"predicted {at['']:.2f}", (at[""], height), (4 if after else -4, 7), xycoords=fraction, textcoords="offset points",
        ha="left" if after else "right", va="center", fontsize=6.5, color=look["color"],
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip


def _key(figure: Any, axes: Any, seeds: int) -> None:
    handles = [axes.plot([], [], ms=3.5, lw=1.1, **LOOK[kind])[0] for kind in WORDS]
    handles.append(axes.plot([], [], marker="o", **RING)[0])
    handles.append(axes.plot([], [], color="black", lw=2.2, marker="o", ms=4)[0])
    words = [*WORDS.values(), "predicted share", "its 95 % interval"]
    title = f"interquartile means of {seeds} seeds, whiskers: 95 % intervals"
    figure.legend(handles, words, loc="outside lower center", ncols=4, columnspacing=1.2, title=title, title_fontsize=7)
