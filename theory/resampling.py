"""Intervals of statistics of recorded tokens: whole responses are drawn anew, since tokens of one response hang together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.core.seeds import SeedTree

RESAMPLES, LEVEL = 200, 0.95


def multiplicities(owner: np.ndarray, seeds: SeedTree, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each token counts, [resamples, N]: as often as its owner (a response, a position) was drawn.

    Examples
    --------
    >>> often = multiplicities(np.array([0, 0, 3]), SeedTree("demo"), 5)
    >>> often.shape, bool((often[:, 0] == often[:, 1]).all()), sorted(set((often[:, 0] + often[:, 2]).tolist()))
    ((5, 3), True, [2])
    """
    owners, place = np.unique(owner, return_inverse=True)
    drawn = seeds.numpy_generator().integers(0, len(owners), (resamples, len(owners)))
    often = np.stack([np.bincount(row, minlength=len(owners)) for row in drawn])
    return often[:, place]


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of the resampled values, along the first axis."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def share_beyond(values: np.ndarray, owner: np.ndarray, points: np.ndarray, seeds: SeedTree) -> dict[str, np.ndarray]:
    """P(|value| > x) at every point, and its interval."""
    beyond = np.abs(values)[:, None] > points
    owners, place = np.unique(owner, return_inverse=True)
    counts = np.stack([np.bincount(place, column, len(owners)) for column in beyond.T], 1)
    often = multiplicities(owners, seeds)
    low, high = interval(often @ counts / (often @ np.bincount(place))[:, None])
    return {"share": beyond.mean(0), "low": low, "high": high}


def spread_of(
    statistic: Callable[[np.ndarray], np.ndarray], tokens: np.ndarray, owner: np.ndarray, seeds: SeedTree
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Statistic of tokens [N, ...] with its interval."""
    often = multiplicities(owner, seeds)
    low, high = interval(np.array([statistic(tokens[np.repeat(np.arange(len(tokens)), row)]) for row in often]))
    return statistic(tokens), low, high
