"""Figures of the notebook on replay, which draw the numbers they are given, and those numbers in plain Python.

The functions `..._by_hand` call no library: the error of a share is a parabola, and its least value on [0, 1] is at the
vertex or at an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from checked_panels import Picture, picture

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREY = COLORS[0], COLORS[3], COLORS[4], "#888888"
Curve = tuple[Sequence[float], Sequence[float]]


def error_and_share(
    shares: Sequence[float],
    error: Any,
    problem: Mapping[str, float],
    best: Any,
    ladder: Curve,
    titles: tuple[str, str],
) -> Picture:
    """Draw bias² and error against the share, and the best share against the budget.

    Parameters
    ----------
    shares : drawn
    error : gives the error `at` a share
    problem : its `bias`, and the `budget` that is marked
    best : the best `share` and its error `mse`
    ladder : budgets and the best share at each
    """
    bias2, total = [(a * problem["bias"]) ** 2 for a in shares], [error.at(a) for a in shares]
    optimum = (best.share, best.mse)
    with drawing("page", 3.1, ncols=2) as (figure, axes):
        axes[0].fill_between(shares, 0, bias2, color=ORANGE, alpha=0.55, linewidth=0, label="bias²")
        axes[0].fill_between(shares, bias2, total, color=BLUE, alpha=0.3, linewidth=0, label="variance / N")
        axes[0].plot(shares, total, color=BLACK, label="error")
        axes[0].plot(
            *optimum, "o", color=BLACK, markersize=7, clip_on=False, zorder=4, linestyle="none", label="best share"
        )
        axes[0].set(xlim=(0, 1), ylim=(0, 1.25 * max(total)), xlabel="replay share a", title=titles[0])
        axes[0].set_ylabel("mean squared error / gradient²")
        axes[1].plot(*ladder, color=BLACK)
        axes[1].plot(problem["budget"], best.share, "o", color=BLACK, markersize=7, clip_on=False, zorder=4)
        axes[1].set_xscale("log", base=2)
        axes[1].set(ylim=(-0.03, 1.03), xlim=(ladder[0][0], ladder[0][-1]), xlabel="budget C (in fresh responses)")
        axes[1].set(ylabel="best share of replay", title=titles[1])
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return picture(figure)


def fronts(panels: Mapping[str, Any], swept: Mapping[str, Sequence[float]], marked: tuple[str, float]) -> Picture:
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
        return picture(figure)


def equilibria(best: Callable[[float], float], found: Any, path: Sequence[float], points: int, title: str) -> Picture:
    """Draw the best response in pieces between its leaps, its fixed points, and the shares of a trainer round by round.

    Parameters
    ----------
    best : best share for the variance that a share in use causes
    found : its fixed points `shares` and its leaps `jumps`
    path : shares round by round
    points : drawn per piece
    title : of the right panel
    """
    settled, pieces = found.shares, []
    for left, right in pairwise([0.0, *found.jumps, 1.0]):
        xs = [left + 1e-9 + (right - left - 2e-9) * k / points for k in range(points + 1)]
        pieces.append((xs, [best(x) for x in xs]))
    many = {0: "no equilibrium", 1: "one equilibrium"}.get(len(settled), f"{len(settled)} equilibria")
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
        axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="share in use", ylabel="best share", title=many)
        axes[1].set(xlim=(0, len(path) - 1), ylim=(0, 1), xlabel="round", ylabel="share in use", title=title)
        figure.legend(loc="outside lower center", ncols=3)
        return picture(figure)


# ------------------------------------------------------------------------------------------------ in plain Python
@dataclass(frozen=True)
class Parabola:
    """Error of a share a of replay: constant + linear a + square a^2."""

    constant: float
    linear: float
    square: float

    def at(self, a: float) -> float:
        """Error at a share."""
        return self.constant + a * (self.linear + a * self.square)

    def best(self) -> float:
        """The share of least error."""
        vertex = -self.linear / (2 * self.square) if self.square > 0 else 0.0
        return min((0.0, 1.0, min(max(vertex, 0.0), 1.0)), key=self.at)


def parabola(
    *, v_fresh: float, v_replay: float, cost_fresh: float, cost_replay: float, bias: float, budget: float
) -> Parabola:
    """Multiply out a^2 b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f) / C."""
    more, saving = v_replay - v_fresh, cost_fresh - cost_replay
    linear = (more * cost_fresh - saving * v_fresh) / budget
    return Parabola(v_fresh * cost_fresh / budget, linear, bias**2 - more * saving / budget)


def mixing_by_hand(v_fresh: float, v_replay: float, bias: float, cost: float, budget: float) -> list[float]:
    """Numbers that `error_and_share` and the sentence below it print, in order.

    At an end the slope of the error is the price of the constraint, and is printed unless it is zero.
    """
    error = parabola(v_fresh=v_fresh, v_replay=v_replay, cost_fresh=1, cost_replay=cost, bias=bias, budget=budget)
    a = error.best()
    slope = error.linear + 2 * a * error.square
    price = {0.0: [slope] if slope > 0 else [], 1.0: [-slope] if slope < 0 else []}.get(a, [])
    return [a, bias, v_replay / v_fresh, cost, a, *price, error.at(a), error.at(0.0), error.at(1.0)]


def aging_by_hand(case: Any, growth: float, start: float, rounds: int) -> list[float]:
    """Numbers that `equilibria` and the sentence below it print, in order.

    Replay of share a is 1 / (1 - a) updates old, at most `case.longest`, and each update adds `growth` to its variance.
    Shares where the best one meets the share in use are found by halving intervals; a leap over it is none.
    """

    def best(used: float) -> float:
        age = min(case.longest, 1 / (1 - used)) if used < 1 else case.longest
        v = case.v_fresh * (1 + growth * (age - 1))
        given = {"cost_fresh": case.cost_fresh, "cost_replay": case.cost_replay}
        return parabola(v_fresh=case.v_fresh, v_replay=v, bias=case.bias, budget=case.budget, **given).best()

    grid = [k / 3000 for k in range(3001)]
    ahead = [best(a) - a for a in grid]
    shares = [a for a, gap in zip(grid, ahead, strict=True) if gap == 0]
    for (left, right), (here, there) in zip(pairwise(grid), pairwise(ahead), strict=True):
        if here * there < 0:
            for _ in range(60):
                middle = (left + right) / 2
                left, right = (middle, right) if (best(middle) - middle) * here > 0 else (left, middle)
            shares += [left] if abs(best(left) - left) < 1e-6 else []
    path = [start]
    for _ in range(rounds):
        path.append(best(path[-1]))
    settles = [path[-1]] if abs(path[-1] - path[-2]) < 1e-6 else []
    many = [len(shares)] if len(shares) > 1 else []
    return [*many, start, *settles, *sorted(shares), start, *settles]
