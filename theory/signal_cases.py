"""Instances of the theorem about caps for any signal: finite laws with a signal per outcome, and a density on a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from testbed.weighting.optimal_cap import capped_error, error_slopes
from theory.real_laws import real_law
from theory.response_weights import response_weight

FINE = 4000  # weights that stand for a density
ATOM = ([0.5, 2.0, 4.0], [0.8, 0.1, 0.1], [1.0, -1.0, 1.0], 4)


@dataclass(frozen=True)
class SignalCase:
    """Weights, probabilities, a signal per outcome (vectors as rows) and a number of draws."""

    name: str
    values: np.ndarray
    probs: np.ndarray
    signal: np.ndarray
    n: int
    slope: tuple[float, float] | None = None  # of a linear signal over a uniform weight: intercept, slope

    @property
    def law(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and probabilities."""
        return self.values, self.probs

    def error(self, cap: float) -> float:
        """Library's mean squared error of a cap."""
        return capped_error(*self.law, cap=cap, n=self.n, signal=self.signal).mse

    def slopes(self, cap: float) -> tuple[float, float]:
        """Library's left and right derivative of it."""
        return error_slopes(*self.law, cap=cap, n=self.n, signal=self.signal)

    @property
    def caps(self) -> np.ndarray:
        """Caps at which slopes are compared with the derivation: between the weights, and at some of them."""
        knots = np.unique(self.values)[:: max(1, len(self.values) // 8)]
        return np.concatenate([knots[knots > 0], (knots[1:] + knots[:-1]) / 2])


def case(name: str, values: Any, probs: Any, signal: Any, n: int) -> SignalCase:
    """Build a case from lists."""
    return SignalCase(name, *(np.asarray(x, dtype=np.float64) for x in (values, probs, signal)), n)


def uniform_case(low: float, high: float, n: int) -> SignalCase:
    """W uniform on [0, 2], f(w) = low at 0 to high at 2, on a fine grid of equally likely weights."""
    w = (np.arange(FINE) + 0.5) * 2 / FINE
    slope = (high - low) / 2
    return SignalCase("density", w, np.full(FINE, 1 / FINE), low + slope * w, n, (low, slope))


def recorded_case() -> SignalCase:
    """Weights of a recorded token; the signal is 1 for every other word, in order of the target's probability, and -1 else."""
    found = real_law(2, "v1_int8_dynamic")
    w = response_weight(found.batch).numpy()
    return SignalCase("recorded", w, found.law.probs.numpy(), np.where(np.arange(len(w)) % 2, -1.0, 1.0), 64)


def signal_cases() -> list[SignalCase]:
    """Several minima, a minimum at a weight without any root, no cap, the cap 0, vectors, constants, a density, real weights."""
    three = ([0.0, 1.0, 5.0], [0.4, 0.5, 0.1])
    return [
        case("several_minima", *three, [1.0, 1.0, 0.2], 4),
        case("atom_without_root", *ATOM),
        case("no_cap", *three, [1.0, 1.0, 0.1], 10),
        case("zero", [0.5, 1.5], [0.5, 0.5], [3.0, -1.0], 10),
        case("vector", [0.25, 1.0, 3.0], [0.5, 0.3125, 0.1875], [[1.0, 0.0], [0.5, -1.0], [1.0, 2.0]], 9),
        case("constant", *three, [1.0, 1.0, 1.0], 20),
        uniform_case(1.0, 0.5, 10),
        recorded_case(),
    ]


def density_root(start: float, rise: float, n: int) -> float:
    """Root of the stationarity condition for W uniform on [0, 2] and f = start + rise W, integrals of polynomials."""

    def above(k: int, c: float) -> float:  # E[W^k; W > c]
        return (2 ** (k + 1) - c ** (k + 1)) / (2 * (k + 1))

    def condition(c: float) -> float:
        f, wf = start * above(0, c) + rise * above(1, c), start * above(1, c) + rise * above(2, c)
        square = start**2 * above(0, c) + 2 * start * rise * above(1, c) + rise**2 * above(2, c)
        whole = start * above(1, 0.0) + rise * above(2, 0.0)
        bias = wf - c * f
        return -bias * f + (c * square - (whole - bias) * f) / n

    return brentq(condition, 0.5, 1.99, xtol=1e-14)
