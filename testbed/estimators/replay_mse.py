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
        return share * self.cost_replay + (1 - share) * self.cost_fresh


def above_zero(name: str, value: Number) -> float:
    """Return a finite float > 0, or raise InputError."""
    if not 0 < value < math.inf:
        raise InputError(f"`{name}` must be finite and > 0", found=value)
    return float(value)


def at_least_zero(name: str, value: Number) -> float:
    """Return a finite float >= 0, or raise InputError."""
    if not 0 <= value < math.inf:
        raise InputError(f"`{name}` must be finite and >= 0", found=value)
    return float(value)


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
    numbers = {"v_fresh": v_fresh, "v_replay": v_replay, "cost_replay": cost_replay}
    wrong = next((name for name, value in numbers.items() if not 0 <= value < math.inf), None)
    if wrong:
        raise InputError(f"`{wrong}` must be finite and >= 0", found=numbers[wrong])
    if not 0 < cost_fresh < math.inf:
        raise InputError("`cost_fresh` must be finite and > 0", found=cost_fresh)
    if not math.isfinite(bias):
        raise InputError("`bias` must be finite", found=bias)
    return Sources(float(v_fresh), float(v_replay), float(cost_fresh), float(cost_replay), float(bias))


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
    worse, saving = given.v_replay - given.v_fresh, given.cost_fresh - given.cost_replay
    return Quadratic(
        given.v_fresh * given.cost_fresh / budget,
        (worse * given.cost_fresh - saving * given.v_fresh) / budget,
        given.bias**2 - worse * saving / budget,
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
