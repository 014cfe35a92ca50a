"""Few runs per arm: interquartile means, stratified bootstrap intervals, probability of improvement, differences by seed.

With ten seeds a mean is at the mercy of one run that collapsed. The interquartile mean forgets a quarter at either end; the
bootstrap draws runs anew within each stratum (a task, a level), so that the mix of strata stays what it was; arms that share
seeds are compared seed by seed. After Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021 (arXiv 2108.13264); SciPy does the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval, check_level, finite_rows

Strata = Sequence[Sequence[float]]
RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A statistic of runs, and its interval."""

    value: float
    interval: Interval
    runs: int

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


def estimate(
    strata: Strata,
    *,
    seeds: SeedTree,
    statistic: Callable[..., np.ndarray] = interquartile_mean,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Statistic of all runs together, with a stratified percentile bootstrap interval.

    Parameters
    ----------
    strata : sequence of sequences   results of runs, one sequence per stratum; one stratum is the plain bootstrap
    seeds : SeedTree                 stream of the draws
    statistic : function             (values [..., n], axis) -> [...], of the runs of all strata together
    level : float                    coverage aimed at
    resamples : int                  draws, >= 100

    Raises
    ------
    InputError   an empty stratum or a value that is not finite
    Gives        coverage in the limit of many runs; with ten it is too short by some per cent (LOG.md)

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

    found = scipy.stats.bootstrap(
        several, together, n_resamples=resamples, method="percentile", confidence_level=0.5, vectorized=True,
        rng=seeds.numpy_generator(),
    )  # fmt: skip
    low, high = np.quantile(found.bootstrap_distribution, [half, 1 - half])
    return Estimate(value=value, interval=Interval(float(low), float(high), level, "stratified_bootstrap"), runs=count)


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


def probability_of_improvement(
    first: Sequence[float], second: Sequence[float], *, seeds: SeedTree, level: float = 0.95
) -> Estimate:
    """Probability that a run of the first arm beats the second arm's run of the same seed, ties counted half.

    Examples
    --------
    >>> probability_of_improvement([1.0, 2.0], [0.0, 2.0], seeds=SeedTree("example")).value
    0.75
    """
    a, b = _paired(first, second)
    wins = (a > b) + 0.5 * (a == b)
    return estimate([wins.tolist()], seeds=seeds, statistic=np.mean, level=level)


def runs_to_tell(first: Sequence[float], second: Sequence[float], *, level: float = 0.95, power: float = 0.9) -> int:
    """Seeds with which a difference of the size observed would be told from 0 with this power (normal approximation).

        n = ((z_level + z_power) sd / |mean|)^2

    Returns
    -------
    int   0 if all differences are one number other than 0; 10**9 or more reads: none was seen

    Examples
    --------
    >>> runs_to_tell([1.0, 3.0], [0.0, 0.0])
    6
    """
    a, b = _paired(first, second)
    difference = a - b
    sd, mean = float(difference.std(ddof=1)) if len(a) > 1 else 0.0, abs(float(difference.mean()))
    if mean == 0:
        return 10**9
    z = scipy.stats.norm.ppf(1 - check_level(level) / 2) + scipy.stats.norm.ppf(power)
    return int(min(10**9, np.ceil((z * sd / mean) ** 2)))


def _paired(first: Sequence[float], second: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = (finite_rows("runs", torch.tensor(list(x), dtype=torch.float64)).numpy() for x in (first, second))
    if a.shape != b.shape:
        raise InputError("arms compared by seed must have the same seeds", found=f"{len(a)} and {len(b)} runs")
    return a, b
