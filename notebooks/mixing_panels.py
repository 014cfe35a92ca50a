"""Figures of the notebook on replay: they draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from classroom import png

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREY = COLORS[0], COLORS[3], COLORS[4], "#888888"
Curve = tuple[Sequence[float], Sequence[float]]


def error_and_share(
    parts: tuple[Sequence[float], Sequence[float], Sequence[float]],
    best: tuple[float, float],
    ladder: Curve,
    budget: float,
    titles: tuple[str, str],
) -> bytes:
    """Draw bias² and error against the share, and the best share against the budget.

    Parameters
    ----------
    parts : shares, bias² and error at each
    best : the best share and its error
    ladder : budgets and the best share at each
    budget : the one that is marked
    """
    shares, bias2, total = parts
    with drawing("page", 3.1, ncols=2) as (figure, axes):
        axes[0].fill_between(shares, 0, bias2, color=ORANGE, alpha=0.55, linewidth=0, label="bias²")
        axes[0].fill_between(shares, bias2, total, color=BLUE, alpha=0.3, linewidth=0, label="variance / N")
        axes[0].plot(shares, total, color=BLACK, label="error")
        axes[0].plot(
            *best, "o", color=BLACK, markersize=7, clip_on=False, zorder=4, linestyle="none", label="best share"
        )
        axes[0].set(xlim=(0, 1), ylim=(0, 1.25 * max(total)), xlabel="replay share a", title=titles[0])
        axes[0].set_ylabel("mean squared error / gradient²")
        axes[1].plot(*ladder, color=BLACK)
        axes[1].plot(budget, best[0], "o", color=BLACK, markersize=7, clip_on=False, zorder=4)
        axes[1].set_xscale("log", base=2)
        axes[1].set(ylim=(-0.03, 1.03), xlim=(ladder[0][0], ladder[0][-1]), xlabel="budget C (in fresh responses)")
        axes[1].set(ylabel="best share of replay", title=titles[1])
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return png(figure)


def fronts(panels: Mapping[str, Any], swept: Mapping[str, Sequence[float]], marked: tuple[str, float]) -> bytes:
    """Draw error against cost per response for each front, what a sweep returns, and the gap at one share of one front."""
    with drawing("page", 3.1, ncols=len(panels)) as (figure, axes):
        for ax, (name, front) in zip(axes, panels.items(), strict=True):
            place = {a: (front.given.cost(a), front.error.at(a)) for a in [k / 400 for k in range(401)]}
            kept = [(x, y if front.optimal(a) else float("nan")) for a, (x, y) in place.items()]
            ax.plot(*zip(*place.values(), strict=True), color=GREY, linewidth=1, label="every share")
            ax.plot(*zip(*kept, strict=True), color=BLUE, linewidth=3, label="Pareto-optimal")
            ends = zip(place[0.0], place[1.0], strict=True)
            ax.plot(*ends, color=ORANGE, linestyle="--", label="straight between the ends")
            here = [(front.given.cost(a), front.error.at(a)) for a in swept[name]]
            ax.plot(*zip(*here, strict=True), "o", color=BLACK, markersize=4, zorder=4, label="returned by the sweep")
            ax.set(xlabel="cost of one response", title=f"{name}: the sweep returns {len(here)} shares")
            if name == marked[0]:
                gap, (x, high) = front.gap(marked[1]), place[marked[1]]
                ax.annotate(
                    "", (x, high), (x, high - gap), arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0}
                )
                ax.annotate(f"gap {gap:.3f}", (x - 0.008, high - 0.1 * gap), fontsize=7, ha="right", va="center")
        axes[0].set_ylabel("mean squared error")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return png(figure)


def equilibria(
    pieces: Sequence[Curve], settled: Sequence[float], path: Sequence[float], titles: tuple[str, str]
) -> bytes:
    """Draw the best response in pieces between its leaps, its fixed points, and the shares of a trainer round by round."""
    with drawing("page", 3.3, ncols=2) as (figure, axes):
        axes[0].plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        for i, piece in enumerate(pieces):
            axes[0].plot(*piece, color=BLUE, clip_on=False, label=None if i else "best share for V(a)")
        for left, right in pairwise(pieces):
            for x, y in ((left[0][-1], left[1][-1]), (right[0][0], right[1][0])):
                axes[0].plot(x, y, "o", color=BLUE, markerfacecolor="white", markersize=5, clip_on=False, zorder=3)
        if settled:
            axes[0].plot(
                settled, settled, "o", color=ORANGE, markersize=6, zorder=4, clip_on=False, label="equilibrium"
            )
        for share in settled:
            axes[1].axhline(share, color=ORANGE, linewidth=4, alpha=0.4)
        axes[1].plot(
            path, "o-", color=BLACK, markersize=3, linewidth=0.8, clip_on=False, label="setting it again and again"
        )
        axes[0].set(
            xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="share in use", ylabel="best share", title=titles[0]
        )
        axes[1].set(xlim=(0, len(path) - 1), ylim=(0, 1), xlabel="round", ylabel="share in use", title=titles[1])
        figure.legend(loc="outside lower center", ncols=3)
        return png(figure)
