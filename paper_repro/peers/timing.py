"""Timing of arms that take turns, so that whatever else the machine does harms all alike; what is reported are ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


def in_turns(
    arms: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every run of every arm; each repeat runs all arms, and begins with another one.

    Parameters
    ----------
    arms : mapping of name to function   warmed up
    repeats : int                        runs of each arm
    clock : function                     seconds

    Examples
    --------
    >>> ticks = iter([0.0, 1.0, 1.0, 3.0, 3.0, 6.0, 6.0, 7.0])
    >>> in_turns({"a": int, "b": int}, 2, lambda: next(ticks))
    {'a': [1.0, 1.0], 'b': [2.0, 3.0]}
    """
    names, seconds = list(arms), {name: [] for name in arms}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            started = clock()
            arms[name]()
            seconds[name].append(clock() - started)
    return seconds


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile.

    Examples
    --------
    >>> quartiles([3.0, 1.0, 2.0, 5.0, 4.0])
    [2.0, 3.0, 4.0]
    """
    return [float(x) for x in np.quantile(np.asarray(values, dtype=np.float64), (0.25, 0.5, 0.75))]


def ratios(rates: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Quartiles of how many times as fast as the reference an arm was, repeat by repeat.

    Examples
    --------
    >>> ratios([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])
    [2.0, 2.0, 2.0]
    """
    return quartiles([one / other for one, other in zip(rates, reference, strict=True)])
