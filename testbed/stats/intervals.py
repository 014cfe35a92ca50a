"""Intervals with a declared coverage, each labeled with its level and the method that guarantees (or only aims at) it.

| function | of | coverage |
|---|---|---|
| `bennett_interval` | a mean of bounded terms with known variance | at least the level at every n |
| `empirical_bernstein_interval` | a mean of bounded terms, variance estimated | at least the level at every n |
| `clopper_pearson` | a probability | at least the level at every n |
| `bootstrap_interval`, `self_normalized_interval` | any statistic of rows | the level in the limit of many rows only |

The bootstrap draws whole rows (responses), never tokens: tokens of one response are not independent.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from scipy.stats import beta
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.bootstrap import bootstrap_interval, self_normalized_interval
from testbed.stats.concentration import bennett_deviation
from testbed.stats.interval import Interval, check_level, finite_rows

__all__ = [
    "Interval",
    "bennett_interval",
    "bootstrap_interval",
    "clopper_pearson",
    "empirical_bernstein_interval",
    "self_normalized_interval",
]


def bennett_interval(
    values: Float[Tensor, " n"], *, low: float, high: float, variance: float, level: float = 0.95
) -> Interval:
    """Interval for the mean of independent terms with known range and variance.

        mean -+ t,   bennett_tail(t) = (1 - level) / 2 with b = high - low

    Parameters
    ----------
    values : Float[Tensor, " n"]   independent terms in [low, high]
    low, high : float              exact range
    variance : float               exact variance of a term, or an upper bound of it
    level : float                  coverage in (0, 1)

    Returns
    -------
    Interval   inside [low, high]

    Raises
    ------
    InputError   no value, or one outside the range; a level outside (0, 1)
    Gives        coverage at least `level` at every n

    Examples
    --------
    >>> import torch
    >>> interval = bennett_interval(torch.arange(1000) % 2 * 1.0, low=0.0, high=1.0, variance=0.25)
    >>> round(interval.low, 4), round(interval.high, 4), interval.method
    (0.4558, 0.5442, 'bennett')
    """
    rows, alpha = _in_range(values, low, high), check_level(level)
    radius = bennett_deviation(len(rows), variance=variance, bound=high - low, alpha=alpha / 2) if high > low else 0.0
    return _around(float(rows.mean()), radius, low, high, level, "bennett")


def empirical_bernstein_interval(
    values: Float[Tensor, " n"], *, low: float, high: float, level: float = 0.95
) -> Interval:
    """Interval for the mean of independent terms with known range and unknown variance.

        mean -+ sqrt(2 V log(4 / alpha) / n) + 7 (high - low) log(4 / alpha) / (3 (n - 1)),   alpha = 1 - level

    with V the sample variance (divisor n - 1). Arguments as `bennett_interval`.

    Returns
    -------
    Interval   inside [low, high]; the whole range for n = 1

    Raises
    ------
    InputError   as `bennett_interval`
    Gives        coverage at least `level` at every n
    References   Maurer and Pontil (2009), arXiv 0907.3740, theorem 4, at alpha / 2 on each side

    Examples
    --------
    >>> import torch
    >>> interval = empirical_bernstein_interval(torch.arange(1000) % 2 * 1.0, low=0.0, high=1.0)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.4429, 0.5571)
    """
    rows, alpha = _in_range(values, low, high), check_level(level)
    n, cost = len(rows), math.log(4 / alpha)
    radius = math.inf
    if n > 1:
        radius = math.sqrt(2 * float(rows.var()) * cost / n) + 7 * (high - low) * cost / (3 * (n - 1))
    return _around(float(rows.mean()), radius, low, high, level, "empirical_bernstein")


def clopper_pearson(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Exact interval for a probability from the number of successes in n independent trials.

        P(X >= successes | low) = P(X <= successes | high) = (1 - level) / 2

    Returns
    -------
    Interval   [0, 1] when n = 0

    Raises
    ------
    InputError   successes not in [0, n]; a level outside (0, 1)
    Gives        coverage at least `level` at every n and every probability
    References   Clopper and Pearson (1934), Biometrika 26(4)

    Examples
    --------
    >>> interval = clopper_pearson(0, 10)
    >>> interval.low, round(interval.high, 4)
    (0.0, 0.3085)
    """
    half = check_level(level) / 2
    if not 0 <= successes <= n:
        raise InputError("`successes` must be in [0, n]", found=f"{successes} of {n}")
    low = float(beta.ppf(half, successes, n - successes + 1)) if successes > 0 else 0.0
    high = float(beta.isf(half, successes + 1, n - successes)) if successes < n else 1.0
    return Interval(low, high, level, "clopper_pearson")


def _in_range(values: Tensor, low: float, high: float) -> Tensor:
    rows = finite_rows("values", values)
    if float(rows.min()) < low or float(rows.max()) > high:
        raise InputError(
            f"`values` must lie in [low, high] = [{low}, {high}]",
            found=f"[{float(rows.min()):.6g}, {float(rows.max()):.6g}]",
            hint="cap the weights first",
        )
    return rows


def _around(mean: float, radius: float, low: float, high: float, level: float, method: str) -> Interval:
    mean = min(max(mean, low), high)  # a mean of values at an end of the range can round past it
    return Interval(max(mean - radius, low), min(mean + radius, high), level, method)
