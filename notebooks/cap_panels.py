"""Figures of the notebook on the optimal cap: they draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from classroom import png
from matplotlib.ticker import LogLocator, NullLocator

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREY = COLORS[0], COLORS[3], COLORS[4], "#888888"
RECIPES = {  # name, marker, color, dash
    "O1": ("best cap (O1)", "o", BLACK, "-"),
    "O3": ("from $d_2$ (O3)", "s", BLUE, "-"),
    "O4": ("from $\\chi^2$ (O4)", "^", COLORS[5], "--"),
    "O9": ("largest for this $\\chi^2$ (O9)", "D", COLORS[1], ":"),
    "sqrt_n": ("$\\sqrt{n}$", "P", COLORS[6], "-"),
    "two": ("always 2", "X", ORANGE, "-."),
}
NO_CAP = {"color": GREY, "linewidth": 5, "alpha": 0.35, "zorder": 1, "label": "no cap"}
Parts = tuple[Sequence[float], Sequence[float], Sequence[float]]


def errors(
    caps: Sequence[float],
    parts: Parts,
    marks: Mapping[str, tuple[float, float, float]],
    equation: Parts,
    title: str,
) -> bytes:
    """Draw error, bias² and variance / n against the cap with every recipe; beside them both sides of the equation.

    Parameters
    ----------
    caps : where the parts are known
    parts : error, bias², variance / n at each
    marks : recipe -> cap, error, regret
    equation : caps, its left and its right side at each; they meet at the best cap
    """
    best = marks["O1"][0]
    with drawing("page", 3.6, ncols=2, width_ratios=(3, 2)) as (figure, (ax, cross)):
        looks = (("error", BLACK, "-"), ("bias²", GREY, "--"), ("variance / n", GREY, ":"))
        for values, (label, color, dash) in zip(parts, looks, strict=True):
            ax.plot(caps, values, color=color, linestyle=dash, label=label)
        for recipe, (label, marker, color, _) in RECIPES.items():
            cap, error, regret = marks[recipe]
            worth = f"{cap:.3g}" + (f", {regret:+.1%}" if recipe != "O1" else "")
            ax.plot([cap], [error], marker, color=color, markersize=7 if recipe == "O1" else 6, label=f"{label}: {worth}",
                    markeredgecolor="black", markeredgewidth=0.6, linestyle="none")  # fmt: skip
        ax.set(
            xscale="log", yscale="log", xlim=(caps[0], caps[-1]), xlabel="cap", ylabel="mean squared error", title=title
        )
        ax.set_ylim(marks["O1"][1] / 8, 2 * max(error for _, error, _ in marks.values()))
        _plain(ax.xaxis, *ax.get_xlim())
        _plain(ax.yaxis, *ax.get_ylim())
        at, left, right = equation
        cross.plot(at, right, color=ORANGE, linestyle="--", label="1 + (n - 1) B(c)")
        cross.plot(at, left, color=BLUE, label="c")
        cross.plot([best], [best], "o", color=BLACK, markersize=7, clip_on=False, zorder=3)
        cross.set(xlim=(at[0], at[-1]), ylim=(1, 1 + 1.5 * (at[-1] - 1)), xlabel="cap", title="the equation")
        cross.legend(loc="upper right")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return png(figure)


def regrets(draws: Sequence[int], laws: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """Draw the regret of every recipe against the number of draws, a panel per law.

    Parameters
    ----------
    draws : responses averaged
    laws : title -> recipe (or "none") -> regret at each
    """
    with drawing("page", 3.1, ncols=len(laws), sharey=True) as (figure, axes):
        for ax, (title, curves) in zip(axes, laws.items(), strict=True):
            for recipe, curve in curves.items():
                ax.plot(draws, [100 * regret for regret in curve], **_look(recipe))
            ax.set(xscale="log", yscale="log", ylim=(0.1, 1e5), xlabel="responses averaged, n", title=title)
            ax.set_xticks([4, 64, 1024], ["4", "64", "1024"])
            ax.minorticks_off()
        axes[0].set_yticks([10.0**k for k in range(-1, 6)], ["0.1%", *(f"{10**k:,}%" for k in range(6))])
        axes[0].set_ylabel("regret")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        return png(figure)


def _look(recipe: str) -> dict[str, Any]:
    if recipe == "none":
        return NO_CAP
    label, _, color, dash = RECIPES[recipe]
    return {"color": color, "linestyle": dash, "label": label}


def _plain(axis: Any, low: float, high: float) -> None:
    """Write a logarithmic axis in plain numbers, few enough to read."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
