"""Instances and symbols of the theorems about caps: a mean-one weight, a number of draws, the caps looked at, a signal.

Laws of up to three atoms are bound atom by atom, so that a derivation about sums over outcomes can be evaluated at them.
For all other laws bias and variance enter as symbols of their own, bound to integrals that know no closed form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from testbed.weighting.cap_law import CappedError, capped_error
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from testbed.weighting.weight_family import WeightFamily
from theory.quadrature import layer_cake_integrals, log_normal_integrals, uniform_integrals
from theory.real_laws import real_law
from theory.response_weights import response_weight

ATOMS = 3
W, P = sp.symbols("w1:4", nonnegative=True), sp.symbols("p1:4", nonnegative=True)
F = sp.symbols("f1:4", real=True)
C, N = sp.Symbol("c", positive=True), sp.Symbol("n", positive=True)
BIAS, VARIANCE = sp.Symbol("B", nonnegative=True), sp.Symbol("V", nonnegative=True)
SECOND = sp.Symbol("d", positive=True)  # d2 where the law is not listed

Numbers = Mapping[sp.Symbol, Any]


@dataclass(frozen=True, kw_only=True)
class CapCase:
    """A law of weights, the number of draws, the caps to look at, and a signal (None: the constant 1; finite laws only)."""

    name: str
    law: WeightFamily
    n: int
    caps: tuple[float, ...] = (0.4, 1.0, 1.3, 2.0, 3.5, 9.0)
    signal: tuple[float, ...] | None = None

    @property
    def listed(self) -> bool:
        """Whether the law is bound atom by atom."""
        return isinstance(self.law, TwoPoint) or (isinstance(self.law, Finite) and len(self.law.values) <= ATOMS)

    def error(self, cap: float, n: float | None = None) -> CappedError:
        """Library's exact error of a cap."""
        draws = self.n if n is None else n
        if self.signal is None:
            return capped_error(self.law, cap=cap, n=draws)
        return capped_error(self.law.values, self.law.probs, cap=cap, n=draws, signal=self.signal)

    def errors(self, n: float | None = None) -> np.ndarray:
        """Mean squared error at each of the caps."""
        return np.array([self.error(c, n).mse for c in self.caps])

    def of(self, function: Callable[[float], float]) -> np.ndarray:
        """Return a function of the cap at each of the caps."""
        return np.array([function(c) for c in self.caps])

    def integrals(self) -> np.ndarray:
        """E min(W, c), E(W - c)+, E min(W, c)^2 and P(W > c) by quadrature: [4, caps]."""
        if isinstance(self.law, LogNormal):
            rows = [log_normal_integrals(self.law.sigma, c) for c in self.caps]
        elif isinstance(self.law, UniformRatio):
            rows = [uniform_integrals(self.law.half_width, c) for c in self.caps]
        else:
            values, probs = atoms(self.law)
            rows = [layer_cake_integrals(values, probs, c) for c in self.caps]
        return np.array(rows).T

    def numbers(self) -> dict[sp.Symbol, Any]:
        """Values of the symbols above at this instance; those that depend on the cap are lists over the caps."""
        mean, excess, second, _ = self.integrals()
        values: dict[sp.Symbol, Any] = {
            C: np.array(self.caps), N: float(self.n), BIAS: excess, VARIANCE: second - mean**2,
            SECOND: self.law.second_moment,
        }  # fmt: skip
        if self.listed:
            w, p = (list(x) for x in atoms(self.law))
            f = list(self.signal or [1.0] * len(w))
            while len(w) < ATOMS:  # split the last atom
                w, f, p = [*w, w[-1]], [*f, f[-1]], [*p[:-1], p[-1] / 2, p[-1] / 2]
            values |= dict(zip((*W, *P, *F), (*w, *p, *f), strict=True))
        return values


def atoms(law: WeightFamily) -> tuple[Sequence[float], Sequence[float]]:
    """Values and probabilities of a law that has finitely many."""
    if isinstance(law, TwoPoint):
        p = law.probability
        return [law.low, law.high], [1 - p, p]
    return law.values.tolist(), law.probs.tolist()


def real_weights(position: int, behavior: str) -> Finite:
    """Law of the weight of one recorded token."""
    found = real_law(position, behavior)
    return Finite(response_weight(found.batch), found.law.probs)


def mean(of: Callable[[Any, Any], Any]) -> sp.Expr:
    """Expectation under the listed law of a function of weight and signal."""
    return sp.Add(*[p * of(w, f) for w, p, f in zip(W, P, F, strict=True)])


def above(w: sp.Expr, c: sp.Expr) -> sp.Expr:
    """(w - c)+, written so that it also evaluates for many caps at once."""
    return (w - c + sp.Abs(w - c)) / 2


def below(w: sp.Expr, c: sp.Expr) -> sp.Expr:
    """min(w, c)."""
    return (w + c - sp.Abs(w - c)) / 2


def random_law(rng: random.Random, least: int = 0) -> dict[sp.Symbol, sp.Rational]:
    """A random rational law of mean one with a signal in [-1, 1], a cap above `least`, a number of draws."""
    parts = [rng.randint(1, 9) for _ in W]
    probs = [sp.Rational(k, sum(parts)) for k in parts]
    raw = [sp.Rational(rng.randint(0, 40), 7) for _ in W[1:]] + [sp.Rational(rng.randint(1, 90), 7)]
    scale = sum(p * x for p, x in zip(probs, raw, strict=True))
    signal = [sp.Rational(rng.randint(-8, 8), 8) for _ in F]
    values = dict(zip((*W, *P, *F), (*(x / scale for x in raw), *probs, *signal), strict=True))
    return {**values, C: least + sp.Rational(rng.randint(1, 24), 8), N: sp.Integer(rng.randint(1, 40))}
