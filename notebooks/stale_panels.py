"""Figures of the notebook on stale training, which draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from checked_panels import Picture
from matplotlib import colormaps
from small_pictures import small_picture
from stale_runs import SEEDS, Race
from watched_clock import Timeline, step_lengths

from figures.style import COLORS, drawing
from testbed.stats.runs import estimate

PURPLE, WINE, BLUE, ORANGE, GREEN, YELLOW, GREY = *COLORS[1:], "#888888"
LOOKS: dict[str, tuple[str, str, str]] = {  # color, dash, marker
    "synchronous": (GREY, "-", "o"),
    "none": (COLORS[0], "-", "o"),
    "exact": (PURPLE, "-", "s"),
    "ppo_clip": (BLUE, "--", "^"),
    "spire": (YELLOW, "-", "D"),
    "topr": (ORANGE, "-", "v"),
    "prefix": (WINE, ":", "P"),
    "sequence_product": (GREEN, "-.", "X"),
    "replay": (COLORS[0], "--", "o"),
    "replay_success": (GREEN, "-", "o"),
}
PALE = "#e4e4e4"
FEW = 3  # arms, up to which every seed is drawn beside them


def look(name: str) -> dict[str, Any]:
    """How an arm is drawn, everywhere on the page the same."""
    wide = {"linewidth": 3.5, "alpha": 0.55} if name == "synchronous" else {}
    return {"color": LOOKS[name][0], "linestyle": LOOKS[name][1], **wide}


def timeline(found: Timeline, title: str) -> Picture:
    """Draw responses as rows of tokens, colored by the version of the weights that drew each, over engine and trainer."""
    lengths, system = step_lengths(found), found.system
    colors = colormaps["viridis"](np.linspace(0, 1, len(found.taken)))
    shown = [(time, i, t) for time, i, t in found.stamps if time - lengths[time] < found.over]
    span = {i: (min(s[0] for s in shown if s[1] == i), max(s[0] for s in shown if s[1] == i)) for _, i, _ in shown}
    lanes: list[float] = []
    lane: dict[int, int] = {}
    for i in sorted(span, key=lambda i: span[i][0]):  # each response in the first row that is free
        free = next((k for k, end in enumerate(lanes) if end < span[i][0] - 1e-9), len(lanes))
        lanes[free : free + 1] = [span[i][1]]
        lane[i] = free
    with drawing("page", 1.7 + 0.16 * len(lanes)) as (figure, ax):
        for i, (begin, end) in span.items():
            ax.plot([begin, end], [lane[i] + 2.5] * 2, color=GREY, linewidth=0.6, zorder=1)  # paused in between
        cells: dict[tuple[int, Any], list[tuple[float, float]]] = {}  # of one row and color, to be drawn at once
        for time, i, t in shown:
            cells.setdefault((lane[i], found.version.get((i, t))), []).append((time - lengths[time], lengths[time]))
        for (row, version), times in cells.items():
            color = PALE if version is None else colors[version]
            ax.broken_barh(times, (row + 2.12, 0.76), facecolor=color, edgecolor="white", linewidth=0.4)
        steps = [(time - length, length) for time, length in lengths.items() if time - length < found.over]
        ax.broken_barh(steps, (1.1, 0.8), facecolor=GREY)
        for number, delivery in enumerate(found.taken[:-1]):
            begin, update = delivery.time, system.update_seconds
            ax.broken_barh(
                [(begin, update)], (0.1, 0.8), facecolor=colors[number + 1], edgecolor="white", linewidth=0.4
            )
            ax.broken_barh([(begin + update, system.push_seconds)], (0.1, 0.8), facecolor="black")
            ax.axvline(begin + update + system.push_seconds, color="black", linewidth=0.5, linestyle=":", zorder=0)
        ax.set_yticks([0.5, 1.5, 2.5 + (len(lanes) - 1) / 2], ["trainer", "engine", "responses\nunder way"])
        ax.set(xlim=(0, found.over), ylim=(0, len(lanes) + 2.1), xlabel="simulated seconds", title=title)
        ax.grid(False)
        scale = figure.colorbar(_scale(len(found.taken)), ax=ax, pad=0.01, ticks=range(len(found.taken)))
        scale.set_label("version of the weights")
        return small_picture(figure)


def _scale(count: int) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    return ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, 256), colormaps["viridis"])


def race(found: Race, names: Sequence[str], over: bool) -> Picture:
    """Draw the rewards of the arms so far, every seed thin, the interquartile mean heavy; beside them the largest ratio.

    When it is over, the band is the 95% interval at each evaluation, and the legend says the final rewards.
    """
    with drawing("page", 2.9, ncols=2, width_ratios=(3, 2)) as (figure, (ax, gap)):
        for name in names:
            style, rewards = look(name), found.rewards(name)
            for run in found.runs.get(name, []) if len(names) <= FEW or not over else []:
                ax.plot(*zip(*run.run.evaluations, strict=True), color=style["color"], linewidth=0.4, alpha=0.5)
            label, full = name, max(map(len, rewards.values()), default=0)
            places = [done for done, values in rewards.items() if len(values) == full]
            each = [estimate([rewards[done]], seeds=SEEDS[name][done], resamples=1000) for done in places]
            if over:
                low, high = ([getattr(e.interval, end) for e in each] for end in ("low", "high"))
                ax.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
                label = f"{name}: {found.judged(name)}"
            ax.plot(places, [e.value for e in each], label=label, **style)
            gap.plot(*_smooth(found.curve(name, "max_log_k")), **style)
        ax.set(xlim=(0, found.updates), ylim=(0, 1), xlabel="updates", ylabel="reward of the trainer's policy")
        gap.set(xlim=(0, found.updates), ylim=(0, None), xlabel="updates", ylabel="largest |log k| of a token")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return small_picture(figure)


def push(found: Race, shares: Mapping[str, tuple[Sequence[float], Sequence[float]]], titles: Sequence[str]) -> Picture:
    """Draw effective shares of the tokens, raw and applied, and where the push goes, means over seeds and five updates."""
    with drawing("page", 2.7, ncols=3) as (figure, axes):
        for name, parts in shares.items():
            style = look(name)
            axes[0].plot(*_smooth(found.curve(name, "ess_raw")), **(style | {"linestyle": ":", "linewidth": 1.0}))
            axes[0].plot(*_smooth(found.curve(name, "ess_applied")), label=name, **style)
            for ax, values in zip(axes[1:], parts, strict=True):
                ax.plot(*_smooth(values), **style)
        axes[0].set(ylim=(0, 1.03), ylabel="effective share of the tokens")
        axes[1].set(ylim=(0, None), ylabel="share of the push")
        axes[2].set(ylim=(0, None))
        for ax, title in zip(axes, titles, strict=True):
            ax.set(xlabel="updates", title=title)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        return small_picture(figure)


def _smooth(values: Sequence[float], width: int = 5) -> tuple[list[float], list[float]]:
    parts = [values[start : start + width] for start in range(0, len(values), width)]
    middle = [start + (len(part) - 1) / 2 for start, part in zip(range(0, len(values), width), parts, strict=True)]
    return middle, [sum(part) / len(part) for part in parts]


def moment(rows: Mapping[str, Sequence[float]], titles: Sequence[str]) -> Picture:
    """Draw the bias of each estimator and what was measured of it; beside it bias against the noise of a batch.

    Parameters
    ----------
    rows : rule -> bias, noise of a batch, expected and found distance from the exact mean, distance from the gradient
    """
    least = 1e-4
    with drawing("page", 2.8, ncols=2, width_ratios=(5, 4)) as (figure, axes):
        at, colors = np.arange(len(rows)), [LOOKS[name][0] for name in rows]
        bias, noise, scatter, from_mean, from_gradient = (np.array(x) for x in zip(*rows.values(), strict=True))
        axes[0].bar(at, np.maximum(bias, least), 0.6, color=colors, alpha=0.5, label="bias")
        axes[0].plot(at, scatter, "_", color="black", markersize=14, label="expected distance from its mean")
        axes[0].plot(at, from_mean, "x", color="black", label="measured distance from its mean")
        axes[0].plot(at, from_gradient, "o", color="black", markersize=4, label="measured from the gradient")
        axes[0].set(yscale="log", ylim=(least, 3), ylabel="in lengths of the gradient", title=titles[0])
        axes[0].set_xticks(at, list(rows), rotation=30, ha="right")
        axes[1].plot([least, 30], [least, 30], color=GREY, linewidth=0.8, linestyle=":")
        for name, x, y in zip(rows, np.maximum(bias, least), noise, strict=True):
            axes[1].plot([x], [y], LOOKS[name][2], color=LOOKS[name][0], markersize=6, label=name)
        axes[1].set(xscale="log", yscale="log", xlim=(0.7 * least, 10), ylim=(0.03, 10), title=titles[1])
        axes[1].set(xlabel="bias (left edge: none; dotted: as large as the noise)", ylabel="noise")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return small_picture(figure)


def replayed(ps: Sequence[float], kept: Sequence[float], at: tuple[float, float], share: float, title: str) -> Picture:
    """Draw the mean advantage of a stored success against the success rate of its prompt, and of a batch with such a share."""
    with drawing("page", 2.5) as (figure, ax):
        ax.plot(ps, kept, color=GREEN, label="a stored success")
        ax.plot(ps, [share * value for value in kept], color=BLUE, linestyle="--", label="the whole batch")
        ax.axhline(0, color=GREY, linewidth=3, alpha=0.5, label="fresh responses")
        ax.plot(*at, "o", color=GREEN, markersize=7)
        ax.set(
            xlim=(0, 1), xlabel="success rate of the prompt, when it was stored", ylabel="mean advantage", title=title
        )
        ax.legend(loc="upper right")
        return small_picture(figure)
