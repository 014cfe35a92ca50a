"""Few runs per arm: interquartile means, stratified bootstrap intervals, probability of improvement, differences by seed.

With ten seeds a mean is at the mercy of one run that collapsed. The interquartile mean forgets a quarter at either end; the
bootstrap draws runs anew within each stratum (a task, a level), so that the mix of strata stays what it was; arms that share
seeds are compared seed by seed. After Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021 (arXiv 2108.13264); SciPy does the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval, check_level, finite_rows
from testbed.stats.intervals import clopper_pearson

Strata = Sequence[Sequence[float]]
RESAMPLES, BEYOND, ENOUGH = 4000, 50, 40_000  # draws: the least; those wanted beyond either percentile; the most
NEVER = 10**9  # runs that nobody makes
STEP, MOST = 4, 2000  # numbers of runs that are tried for a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A statistic of runs, and its interval.

    Parameters
    ----------
    value : float
    interval : Interval
    runs : int             that it is of
    error : float | None   standard error; None: what the interval's width says of a normal one
    """

    value: float
    interval: Interval
    runs: int
    error: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.interval.low:.3f}, {self.interval.high:.3f}]"


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half: a quarter of the runs, rounded down, is left out at either end.

    Examples
    --------
    >>> float(interquartile_mean(np.array([0.0, 4.0, 5.0, 100.0])))
    4.5
    """
    return np.asarray(scipy.stats.trim_mean(values, 0.25, axis=axis))


def expanded(half: float, runs: int, strata: int = 1) -> float:
    """Probability at which a bootstrap of few runs takes its percentiles, so that an interval covers what it declares.

        half' = Phi(-sqrt(n / (n - s)) t),     t the 1 - half quantile of Student's t with n - s degrees of freedom

    The bootstrap's spread is that of a variance with divisor n, and its tails are a normal law's; a t interval has neither
    fault. For normal runs this is the t interval of their mean, on the bootstrap's own scale.

    Parameters
    ----------
    half : float   what lies beyond either end, as declared
    runs : int     n, > strata
    strata : int   s

    Examples
    --------
    >>> round(expanded(0.025, 10), 4), round(expanded(0.025, 1000), 4)
    (0.0086, 0.0248)
    """
    t = scipy.stats.t.isf(half, runs - strata)
    return float(scipy.stats.norm.sf(np.sqrt(runs / (runs - strata)) * t))


def estimate(
    strata: Strata,
    *,
    seeds: SeedTree,
    statistic: Callable[..., np.ndarray] = interquartile_mean,
    level: float = 0.95,
    resamples: int | None = None,
) -> Estimate:
    """Statistic of all runs together, with a stratified percentile bootstrap interval at `expanded` percentiles.

    Parameters
    ----------
    strata : sequence of sequences   results of runs, one sequence per stratum; one stratum is the plain bootstrap
    seeds : SeedTree                 stream of the draws
    statistic : function             (values [..., n], axis) -> [...], of the runs of all strata together
    level : float                    coverage
    resamples : int | None           draws, >= 100; None: RESAMPLES, or as many as leave BEYOND draws beyond either percentile, no
                                     more than ENOUGH

    Raises
    ------
    InputError   an empty stratum or a value that is not finite
    Gives        for ten runs or more, normal or with every fourth a collapse, an end beyond the truth no more than .03 of the
                 time where .025 is declared, .005 for .0035 (.013 where single runs decide); for five .05 (LOG.md)

    Examples
    --------
    >>> found = estimate([[0.1, 0.2, 0.3, 0.4]], seeds=SeedTree("example"))
    >>> round(found.value, 6), 0.1 <= found.interval.low < found.interval.high <= 0.4
    (0.25, True)
    """
    parts = [finite_rows("runs", torch.tensor(list(part), dtype=torch.float64)).numpy() for part in strata]
    if not parts:
        raise InputError("`strata` must hold at least one stratum", found="none")
    half = check_level(level) / 2
    value = float(statistic(np.concatenate(parts), axis=-1))
    count = sum(map(len, parts))
    if all(np.ptp(part) == 0 for part in parts):
        return Estimate(value=value, interval=Interval(value, value, level, "stratified_bootstrap"), runs=count)
    single = [part for part in parts if len(part) == 1]  # a run alone in its stratum is always drawn
    several = [part for part in parts if len(part) > 1]

    def together(*drawn: np.ndarray, axis: int) -> np.ndarray:
        kept = [np.broadcast_to(part, (*drawn[0].shape[:-1], 1)) for part in single]
        return statistic(np.concatenate([*drawn, *kept], axis=-1), axis=-1)

    drawn, free = sum(map(len, several)), sum(map(len, several)) - len(several)
    tail = expanded(half, drawn, len(several))
    if resamples is None:
        resamples = ENOUGH if tail * ENOUGH < BEYOND else max(RESAMPLES, math.ceil(BEYOND / tail))
    found = scipy.stats.bootstrap(
        several, together, n_resamples=resamples, method="percentile", confidence_level=0.5, vectorized=True,
        rng=seeds.numpy_generator(),
    )  # fmt: skip
    low, high = np.quantile(found.bootstrap_distribution, [tail, 1 - tail])
    return Estimate(
        value=value,
        interval=Interval(float(low), float(high), level, "stratified_bootstrap"),
        runs=count,
        error=float(found.bootstrap_distribution.std() * np.sqrt(drawn / free)),
    )


def difference_by_seed(
    first: Sequence[float], second: Sequence[float], *, seeds: SeedTree, level: float = 0.95
) -> Estimate:
    """Interquartile mean of first - second, runs of one seed subtracted from each other.

    Examples
    --------
    >>> found = difference_by_seed([0.9, 0.8, 0.7], [0.4, 0.3, 0.1], seeds=SeedTree("example"))
    >>> found.interval.low > 0
    True
    """
    a, b = _paired(first, second)
    return estimate([(a - b).tolist()], seeds=seeds, level=level)


def probability_of_improvement(first: Sequence[float], second: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Probability that a run of the first arm beats the second arm's run of the same seed, ties counted half.

        value = (wins + ties / 2) / n,   low = Clopper-Pearson of wins,   high = Clopper-Pearson of wins + ties

    A bootstrap of ten wins in ten would be a point; the exact interval of a rate is not.

    Examples
    --------
    >>> found = probability_of_improvement([1.0, 2.0], [0.0, 2.0])
    >>> found.value, round(found.interval.low, 6), found.interval.high
    (0.75, 0.012579, 1.0)
    """
    a, b = _paired(first, second)
    wins, ties, n = int((a > b).sum()), int((a == b).sum()), len(a)
    low, high = (clopper_pearson(count, n, level=level) for count in (wins, wins + ties))
    interval = Interval(low.low, high.high, level, "clopper_pearson")
    return Estimate(value=(wins + ties / 2) / n, interval=interval, runs=n)


def runs_to_tell(found: Estimate, bound: float = 0.0, *, power: float = 0.9) -> int:
    """Runs with which an interval would leave a bound out with this power, were the estimate the truth.

        n = runs ((z_level + z_power) se / |value - bound|)^2,   se = error, else (high - low) / (2 z_level)

    The error is that of the statistic itself (interquartile mean, bootstrap), not that of a mean.

    Parameters
    ----------
    found : Estimate   with its interval
    bound : float      that a verdict needs to lie outside the interval

    Returns
    -------
    int   NEVER or more: no number of runs that could be made

    Examples
    --------
    >>> runs_to_tell(Estimate(value=0.1, interval=Interval(-0.05, 0.25, 0.95, ""), runs=10))
    62
    """
    away, z = abs(found.value - bound), scipy.stats.norm.ppf((1 + found.interval.level) / 2)
    if away == 0:
        return NEVER
    error = found.interval.width / (2 * z) if found.error is None else found.error
    return int(min(NEVER, np.ceil(found.runs * ((z + scipy.stats.norm.ppf(power)) * error / away) ** 2)))


def runs_to_tell_rate(count: int, runs: int, bound: float, *, level: float = 0.95, power: float = 0.9) -> int:
    """Runs with which the exact interval of a rate would leave a bound out with this power, were `count / runs` the rate.

    Returns
    -------
    int   the least that is a multiple of `STEP`, NEVER if MOST are too few

    Examples
    --------
    >>> runs_to_tell_rate(2, 10, 0.5)
    28
    """
    half, share = check_level(level) / 2, count / runs
    for n in range(STEP, MOST + 1, STEP):
        seen = np.arange(n + 1)
        low = np.nan_to_num(scipy.stats.beta.ppf(half, seen, n - seen + 1), nan=0.0)
        high = np.nan_to_num(scipy.stats.beta.isf(half, seen + 1, n - seen), nan=1.0)
        out = high < bound if share < bound else low > bound
        if scipy.stats.binom.pmf(seen, n, share)[out].sum() >= power:
            return n
    return NEVER


def _paired(first: Sequence[float], second: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = (finite_rows("runs", torch.tensor(list(x), dtype=torch.float64)).numpy() for x in (first, second))
    if a.shape != b.shape:
        raise InputError("arms compared by seed must have the same seeds", found=f"{len(a)} and {len(b)} runs")
    return a, b
