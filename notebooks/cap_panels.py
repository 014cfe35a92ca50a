"""Figures of the notebook on the optimal cap, which draw the numbers they are given, and those numbers a second way.

The functions `..._by_hand` share no formula with the library: sums over all outcomes or the normal distribution function,
and halving an interval for the best cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from checked_panels import Picture, picture
from matplotlib.ticker import LogLocator, NullLocator

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREY = COLORS[0], COLORS[3], COLORS[4], "#888888"
RECIPES = {  # name, marker, color, dash
    "O1": ("best cap (O1)", "o", BLACK, "-"),
    "O3": ("from $d_2$ (O3)", "s", BLUE, "-"),
    "O4": ("from $\\chi^2$ (O4)", "^", COLORS[5], "--"),
    "O9": ("largest for this $\\chi^2$ (O9)", "D", COLORS[1], ":"),
    "sqrt_n": ("$\\sqrt{n}$", "P", COLORS[6], "-"),
    "two": ("always two", "X", ORANGE, "-."),
}
NO_CAP = {"color": GREY, "linewidth": 5, "alpha": 0.35, "zorder": 1, "label": "no cap"}
Parts = tuple[Sequence[float], Sequence[float], Sequence[float]]


def errors(
    caps: Sequence[float],
    parts: Parts,
    marks: Mapping[str, tuple[float, float, float]],
    equation: Parts,
    title: str,
) -> Picture:
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
        cross.plot(at, right, color=ORANGE, linestyle="--", label="$1 + (n-1)\\,B(c)$")
        cross.plot(at, left, color=BLUE, label="$c$")
        cross.plot([best], [best], "o", color=BLACK, markersize=7, clip_on=False, zorder=3)
        cross.set(xlim=(at[0], at[-1]), ylim=(1, 1 + 1.5 * (at[-1] - 1)), xlabel="cap", title="the equation")
        cross.legend(loc="upper right")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return picture(figure)


def regrets(draws: Sequence[int], laws: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture:
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
        return picture(figure)


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


# ------------------------------------------------------------------------------------------------ a second way
def error_by_hand(law: Any, cap: float, n: float) -> tuple[float, float, float]:
    """Bias, variance of one capped weight and error of the mean of n: of a log-normal, a two-point or a listed law."""
    if hasattr(law, "sigma"):
        above, tilted, below = (_share(law.sigma, cap, power) for power in (0.0, 1.0, 2.0))
        capped_square = exp(law.sigma**2) * (1 - below) + (cap**2 * above if cap < inf else 0.0)
        bias = -(tilted - cap * above) if cap < inf else 0.0
        variance = capped_square - (1 + bias) ** 2
    else:
        values, probs = _listed(law)
        capped = np.minimum(values, cap)
        bias = float(probs @ (capped - values))
        variance = float(probs @ (capped - probs @ capped) ** 2)
    return bias, variance, bias**2 + variance / n


def best_by_hand(law: Any, n: float) -> float:
    """Root of c = 1 + (n - 1) B(c): the left side rises, the right side falls, so halve the interval between them."""
    low, high = 1.0, 1 - (n - 1) * error_by_hand(law, 1.0, n)[0]
    for _ in range(70):
        middle = (low + high) / 2
        too_small = middle < 1 - (n - 1) * error_by_hand(law, middle, n)[0]
        low, high = (middle, high) if too_small else (low, middle)
    return (low + high) / 2


def recipes_by_hand(law: Any, n: int) -> dict[str, tuple[float, float, float]]:
    """Cap, error and regret of every recipe, and of no cap."""
    chi2 = error_by_hand(law, inf, n)[1]
    caps = {
        "O1": best_by_hand(law, n),
        "O3": (n * (1 + chi2) ** 2 / 8) ** (1 / 3),
        "O4": 1 + (n * chi2**2 / 8) ** (1 / 3),
        "O9": 1 + (n - 1) * sqrt(chi2) / (2 * sqrt(n)),
        "sqrt_n": sqrt(n), "two": 2.0, "none": inf,
    }  # fmt: skip
    errors = {recipe: error_by_hand(law, cap, n)[2] for recipe, cap in caps.items()}
    return {recipe: (caps[recipe], error, error / errors["O1"] - 1) for recipe, error in errors.items()}


def control_by_hand(law: Any, n: int) -> list[Any]:
    """Numbers that `errors` and the sentence below it print, in order."""
    found = recipes_by_hand(law, n)
    (cap, error, _), (_, without, loss) = found["O1"], found["none"]
    others = [(found[recipe][0], found[recipe][2]) for recipe in list(RECIPES)[1:]]
    return [n, error, cap, without, cap, others, cap, error, others, loss]


def reward_cap_by_hand(weight: float, chance: float, n: int) -> float:
    """Best cap where only one outcome earns, drawn with this chance.

    The error p^2 (W - c)^2 + p (1 - p) c^2 / n is a parabola in c.
    """
    return n * chance * weight / (1 + (n - 1) * chance)


def _listed(law: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(law, "low"):
        rare = (1 - law.low) / (law.high - law.low)
        return np.array([law.low, law.high]), np.array([1 - rare, rare])
    return np.asarray(law.values), np.asarray(law.probs)


def _share(sigma: float, cap: float, power: float) -> float:
    """Probability of W > cap after tilting by W^power: log W is normal, and tilting moves its mean by power sigma^2."""
    return 1 - NormalDist().cdf((log(cap) - (power - 0.5) * sigma**2) / sigma) if cap < inf else 0.0
