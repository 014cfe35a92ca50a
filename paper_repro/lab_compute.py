"""Simulated compute of the laboratory's runs: what a run had spent after so many updates, and earned by then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from testbed.training.results_file import POINTS

WINDOW = 0.3  # part of the way, at its end, that a reward is the mean of: at the same compute the same compute for all shares
POINTS_OF_WINDOW = 31  # at which the line through the evaluations is read off


def compute_after(row: Mapping[str, Any], planned: int, updates: float) -> float:
    """Simulated seconds of engine and trainer that a run had spent after so many updates.

    Parameters
    ----------
    row : mapping     of a results file: means of both curves over stretches of ceil(planned / POINTS) updates
    planned : int     updates that the run was to make
    updates : float   beyond the end of the curves their last stretch goes on

    Examples
    --------
    >>> row = {"curve_engine_seconds": [1.0, 3.0], "curve_trainer_seconds": [1.0, 1.0]}
    >>> [compute_after(row, 30, updates) for updates in (1, 2, 3, 4)]
    [2.0, 4.0, 8.0, 12.0]
    """
    width, left, spent = max(1, -(-planned // POINTS)), float(updates), 0.0
    each = [e + t for e, t in zip(row["curve_engine_seconds"], row["curve_trainer_seconds"], strict=True)]
    for seconds in each:
        part = min(left, width)
        spent, left = spent + part * seconds, left - part
    return spent + left * each[-1]


def reward_at(row: Mapping[str, Any], every: int, updates: float) -> float:
    """Reward after so many updates: mean of the line through the evaluations over the last WINDOW of the way; 0 once diverged.

    A mean of the last three evaluations would look back over 30 updates, which are a third of a run of 100 and a tenth of one
    of 280 that has spent as much.

    Examples
    --------
    >>> row = {"evaluations": [0.0, 0.5, 1.0], "outcome": "finished", "updates": 20}
    >>> round(reward_at(row, 10, 20), 6), reward_at(row | {"outcome": "diverged"}, 10, 25)
    (0.85, 0.0)
    """
    if row["outcome"] == "diverged" and updates >= row["updates"]:
        return 0.0
    seen = row["evaluations"]
    read = np.linspace((1 - WINDOW) * updates, updates, POINTS_OF_WINDOW)
    return float(np.interp(read, every * np.arange(len(seen)), seen).mean())


def updates_for(row: Mapping[str, Any], planned: int, seconds: float) -> float:
    """Updates after which a run has spent so many seconds, at most those it was to make."""
    low, high = 0.0, float(planned)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_after(row, planned, middle) <= seconds else (low, middle)
    return round(high, 6)
