"""Means of few independent two-point variables, enumerated: the error of a pooled mean without any formula for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Law = tuple[Sequence[float], Sequence[float]]  # values, probabilities


def two_point(mean: float, variance: float, p: float) -> Law:
    """Two values with this mean and variance; the upper one has probability p."""
    return (mean + (variance * (1 - p) / p) ** 0.5, mean - (variance * p / (1 - p)) ** 0.5), (p, 1 - p)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One independent draw and how often it counts in the mean."""

    law: Law
    times: int = 1


def enumerated_mse(draws: Sequence[Drawn], truth: float) -> float:
    """E (mean - truth)^2 over every joint outcome of the draws."""
    total = 0.0
    size = sum(draw.times for draw in draws)
    for outcome in itertools.product(*[range(len(draw.law[0])) for draw in draws]):
        mean = sum(draw.times * draw.law[0][i] for draw, i in zip(draws, outcome, strict=True)) / size
        total += float(np.prod([draw.law[1][i] for draw, i in zip(draws, outcome, strict=True)])) * (mean - truth) ** 2
    return total


def mixture(first: Law, second: Law, share: float) -> Law:
    """Law of one draw that comes from `second` with probability `share`."""
    values = (*first[0], *second[0])
    return values, (*[(1 - share) * p for p in first[1]], *[share * p for p in second[1]])
