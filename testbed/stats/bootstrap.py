"""Percentile bootstrap over rows, for statistics that have no bound of their own.

A self-normalized ratio is normalized anew inside every draw. Bootstrapping the un-normalized rounds instead answers
another question: with all rewards equal to 1 it gives an interval from 0.35 to 1.87 around an estimate that cannot
be anything but 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.stats
import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval, check_level, finite_rows

BATCH_ENTRIES = 2**22  # draws are made in batches of about this many entries
UNDEFINED = -2.0  # stands for a ratio with denominator 0; real ones are scaled into [-1, 1]


def bootstrap_interval(
    rows: Float[Tensor, "n ..."],
    statistic: Callable[[Float[Tensor, "n ..."]], float | Tensor],
    *,
    seeds: SeedTree,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Percentile interval of a statistic of n exchangeable rows.

    Parameters
    ----------
    rows : Float[Tensor, "n ..."]   one row per response
    statistic : function            of n drawn rows, giving one number; everything data-dependent must happen inside it
    seeds : SeedTree                the stream the draws come from; the same stream gives the same interval
    level : float                   coverage aimed at, in (0, 1)
    resamples : int                 >= 100 draws of n rows

    Returns
    -------
    Interval   [v, v] when the statistic is v on every draw

    Raises
    ------
    InputError   no row, a value that is not finite, a statistic that is not finite on some draw
    Gives        coverage only in the limit of many rows; too short for heavy tails
    References   Efron and Tibshirani (1993), An Introduction to the Bootstrap, section 13.3

    Examples
    --------
    >>> rows = torch.arange(100.0)
    >>> interval = bootstrap_interval(rows, lambda drawn: drawn.mean(), seeds=SeedTree("example"))
    >>> 49.5 in interval, 8 < interval.width < 15
    (True, True)
    """
    clean = finite_rows("rows", rows)

    def of_index(index: np.ndarray) -> float:
        value = float(statistic(clean[torch.from_numpy(index)]))
        if not np.isfinite(value):
            raise InputError(
                "`statistic` must be finite on every draw of rows",
                found=value,
                hint="define it for draws that miss the rare rows",
            )
        return value

    draws = _draws(len(clean), of_index, seeds, resamples, vectorized=False)
    return _percentile(draws, draws, level)


def self_normalized_interval(
    weights: Float[Tensor, " n"],
    values: Float[Tensor, " n"],
    *,
    seeds: SeedTree,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Percentile interval of sum w v / sum w, normalized anew inside every draw of rows.

    Parameters
    ----------
    weights : Float[Tensor, " n"]   >= 0, finite, not all 0, any common scale
    values : Float[Tensor, " n"]    finite
    seeds, level, resamples         as in `bootstrap_interval`

    Returns
    -------
    Interval   inside [min value, max value]; a draw of zero weights only says nothing, and counts as the smallest value
               for the low end and as the largest for the high end

    Raises
    ------
    InputError   a negative or infinite weight, all weights 0, other shapes

    Examples
    --------
    >>> self_normalized_interval(torch.tensor([9.0, 0.1, 0.1]), torch.ones(3), seeds=SeedTree("example"))
    Interval(low=1.0, high=1.0, level=0.95, method='bootstrap_self_normalized')
    """
    w, v = finite_rows("weights", weights).numpy(), finite_rows("values", values).numpy()
    if w.shape != v.shape or w.ndim != 1:
        raise InputError("`weights` and `values` must be vectors of one length", found=f"{w.shape} and {v.shape}")
    if w.min() < 0 or w.max() == 0:
        raise InputError("`weights` must be >= 0 and not all 0", found=f"[{w.min():.6g}, {w.max():.6g}]")
    scale = np.abs(v).max() or 1.0
    w, u = w / w.max(), v / scale

    def of_index(index: np.ndarray, axis: int) -> np.ndarray:
        total = w[index].sum(axis)
        ratio = np.full(total.shape, UNDEFINED)
        return np.divide((w[index] * u[index]).sum(axis), total, out=ratio, where=total > 0)

    draws = _draws(len(w), of_index, seeds, resamples, vectorized=True)
    empty = draws == UNDEFINED
    draws = (draws * scale).clip(v.min(), v.max())  # rounding can leave the range
    interval = _percentile(np.where(empty, v.min(), draws), np.where(empty, v.max(), draws), level)
    return Interval(interval.low, interval.high, level, "bootstrap_self_normalized")


def _draws(n: int, statistic: Callable, seeds: SeedTree, resamples: int, *, vectorized: bool) -> np.ndarray:
    """Values of the statistic on `resamples` draws of n row numbers with replacement."""
    if resamples < 100:
        raise InputError("`resamples` must be at least 100", found=resamples)
    if n == 1:
        only = np.zeros((1, 1), dtype=np.int64)
        return np.full(resamples, statistic(only, -1)[0] if vectorized else statistic(only[0]))
    result = scipy.stats.bootstrap(
        (np.arange(n),), statistic, n_resamples=resamples, batch=max(1, BATCH_ENTRIES // n), vectorized=vectorized,
        axis=-1, method="percentile", confidence_level=0.5, rng=seeds.numpy_generator(),
    )  # fmt: skip
    return np.asarray(result.bootstrap_distribution)


def _percentile(for_low: np.ndarray, for_high: np.ndarray, level: float) -> Interval:
    half = check_level(level) / 2
    return Interval(
        float(np.quantile(for_low, half)), float(np.quantile(for_high, 1 - half)), level, "bootstrap_percentile"
    )
