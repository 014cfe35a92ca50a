"""Mean squared error of a pooled mean of fresh and replayed samples, as a quadratic in the replay share.

Fresh samples are unbiased; replayed ones carry what their weights left uncorrected. Under a budget, cheaper replay also
buys more samples, and that is what can make the quadratic bend down.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.core.errors import InputError

Number = float | int


class Quadratic(NamedTuple):
    """f(a) = constant + linear a + square a^2, in squared units of the estimated quantity."""

    constant: float
    linear: float
    square: float

    def at(self, share: Number) -> float:
        """Value at a share."""
        return self.constant + share * (self.linear + share * self.square)

    def slope(self, share: Number) -> float:
        """Derivative with respect to the share."""
        return self.linear + 2 * share * self.square

    @property
    def size(self) -> float:
        """Magnitude of the terms: differences below some 1e-15 of it are rounding."""
        return abs(self.constant) + abs(self.linear) + abs(self.square)


class Sources(NamedTuple):
    """Two sources of samples, fresh and replay: variance and cost of one sample each, and the bias of replay."""

    v_fresh: float
    v_replay: float
    cost_fresh: float
    cost_replay: float
    bias: float

    @property
    def saving(self) -> float:
        """D_c = c_f - c_r: what one replayed sample saves."""
        return self.cost_fresh - self.cost_replay

    def cost(self, share: Number) -> float:
        """Cost of one sample on average, a c_r + (1 - a) c_f."""
        return self.cost_fresh - share * self.saving

    def variance(self, share: Number) -> float:
        """Variance of one sample on average, a v_r + (1 - a) v_f."""
        return self.v_fresh + share * (self.v_replay - self.v_fresh)


def finite(name: str, value: Number, *, above_zero: bool = False, at_least_zero: bool = False) -> float:
    """Return a finite float that satisfies the stated sign, or raise InputError."""
    number = float(value)
    wrong = (above_zero and not number > 0) or (at_least_zero and number < 0)
    if not math.isfinite(number) or wrong:
        rule = "finite and > 0" if above_zero else "finite and >= 0" if at_least_zero else "finite"
        raise InputError(f"`{name}` must be {rule}", found=value)
    return number


def sources(v_fresh: Number, v_replay: Number, cost_fresh: Number, cost_replay: Number, bias: Number) -> Sources:
    """Check the five numbers of a mixing problem.

    Parameters
    ----------
    v_fresh, v_replay : float         variance of one sample, >= 0, squared units of the estimated quantity
    cost_fresh, cost_replay : float   cost of one sample, any unit; fresh > 0, replay >= 0
    bias : float                      mean of a replayed sample minus the truth, either sign

    Returns
    -------
    Sources

    Raises
    ------
    InputError   a number that is not finite, or of the wrong sign

    Examples
    --------
    >>> sources(1, 4, 1, 0.5, 0.1).cost(0.5)
    0.75
    """
    return Sources(
        finite("v_fresh", v_fresh, at_least_zero=True),
        finite("v_replay", v_replay, at_least_zero=True),
        finite("cost_fresh", cost_fresh, above_zero=True),
        finite("cost_replay", cost_replay, at_least_zero=True),
        finite("bias", bias),
    )


def mse_at_budget(given: Sources, budget: Number) -> Quadratic:
    """Mean squared error at a fixed budget, as a function of the replay share a.

        MSE(a) = a^2 b^2 + (a v_r + (1-a) v_f) (a c_r + (1-a) c_f) / C

    Parameters
    ----------
    given : Sources
    budget : float      C > 0, total cost of all samples

    Returns
    -------
    Quadratic           square coefficient b^2 - (v_r - v_f)(c_f - c_r) / C: negative when the budget is small

    Assumes      independent samples, of which exactly a N are replayed, in one unweighted mean; N = C / cost(a) is real
    Gives        the exact error wherever N and a N are integers (K1)

    Examples
    --------
    >>> f = mse_at_budget(sources(1, 4, 1, 0.5, 0.1), 10)
    >>> round(f.at(0), 12), round(f.at(1), 12), f.square < 0
    (0.1, 0.21, True)
    """
    worse = given.v_replay - given.v_fresh
    return Quadratic(
        given.v_fresh * given.cost_fresh / budget,
        (worse * given.cost_fresh - given.saving * given.v_fresh) / budget,
        given.bias**2 - worse * given.saving / budget,
    )


def mse_at_size(given: Sources, n: Number) -> Quadratic:
    """Mean squared error of N samples, whatever they cost, as a function of the replay share a.

        MSE(a) = a^2 b^2 + (a v_r + (1-a) v_f) / N

    Parameters
    ----------
    given : Sources
    n : float          N > 0 samples

    Returns
    -------
    Quadratic          never bends down: its square coefficient is b^2

    Assumes      as `mse_at_budget`

    Examples
    --------
    >>> mse_at_size(sources(1, 4, 1, 0.5, 0.5), 2).at(1)
    2.25
    """
    return Quadratic(given.v_fresh / n, (given.v_replay - given.v_fresh) / n, given.bias**2)
