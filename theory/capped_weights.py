"""Derivations of E min(W, c), E(W - c)+ and E min(W, c)^2: log-normal, two-point, uniform and finite laws of mean one.

A family whose support has ends is derived once for each region the cap can lie in: below it, inside it, above it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from testbed.weighting.weight_family import WeightFamily
from theory.derivation import Derivation, Step
from theory.quadrature import Integrals

Symbols = Mapping[sp.Symbol, Any]
C, Z = sp.Symbol("c", positive=True), sp.Symbol("z", real=True)
S, H, L, U = (sp.Symbol(name, positive=True) for name in ("s", "h", "l", "u"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A family and a cap; `region` says where the cap lies, `atoms` holds (values, probabilities) of a discrete law."""

    name: str
    law: WeightFamily
    cap: float
    integrals: Callable[[], Integrals]
    region: int = 0
    atoms: tuple[np.ndarray, np.ndarray] | None = None


def normal_cdf(x: Any) -> sp.Expr:
    """P(N(0,1) <= x)."""
    return (1 + sp.erf(sp.sympify(x) / sp.sqrt(2))) / 2


def _chain(stated: list[sp.Expr], closed: list[sp.Expr], tail: sp.Expr, why: str, how: str) -> list[list[Step]]:
    """Chains from the three expectations as stated to their closed forms, the complement, and the slope in the cap."""
    names = ("capped_mean", "excess", "capped_second")
    tex = (r"E \min(W, c)", r"E (W - c)_+", r"E \min(W, c)^2")
    chains = [
        [Step("definition", a, why, tex=t), Step("closed", b, how, quantity=q, tex=sp.latex(b))]
        for a, b, q, t in zip(stated, closed, names, tex, strict=True)
    ]
    chains[1].append(Step("complement", 1 - closed[0], "min(W, c) + (W - c)+ = W, of mean 1", tex=r"1 - E \min(W, c)"))
    chains.append([
        Step("slope", sp.diff(closed[0], C), "derivative of the first closed form in the cap", tex=r"\partial_c E \min(W, c)"),
        Step("tail", tail, "the cap moves where W > c only", quantity="tail", tex=r"P(W > c)"),
        Step("slope_of_excess", -sp.diff(closed[1], C), "and so does the excess, downwards", tex=r"-\partial_c B(c)"),
        Step("slope_of_second", sp.diff(closed[2], C) / (2 * C), "and the square, 2c times as fast",
             tex=r"\partial_c E \min(W, c)^2 / (2c)"),
    ])  # fmt: skip
    return chains


@lru_cache(maxsize=1)
def _log_normal() -> Derivation:
    density = sp.exp(-(Z**2) / 2) / sp.sqrt(2 * sp.pi)
    weight = sp.exp(S * Z - S**2 / 2)
    kink = (sp.log(C) + S**2 / 2) / S
    primitives = [normal_cdf(Z), normal_cdf(Z - S), sp.exp(S**2) * normal_cdf(Z - 2 * S)]  # of W^k times the density
    squares = [
        Step("integrands", [density * weight**k for k in range(3)], "W^k phi(z), k = 0, 1, 2, at W = e^{sz - s^2/2}",
             tex=r"e^{k(sz - s^2/2)} \varphi(z)"),
        Step("square", [sp.exp(k * (k - 1) * S**2 / 2) * density.subs(Z, Z - k * S) for k in range(3)],
             "complete the square in the exponent", tex=r"e^{k(k-1)s^2/2} \varphi(z - k s)"),
        Step("primitive", [sp.diff(f, Z) for f in primitives], "the normal density is the slope of its distribution function",
             tex=r"\frac{d}{dz}\, e^{k(k-1)s^2/2} \Phi(z - k s)"),
    ]  # fmt: skip

    def part(k: int, above: bool) -> sp.Expr:
        value = primitives[k].subs(Z, kink)
        return primitives[k].subs(Z, sp.oo) - value if above else value - primitives[k].subs(Z, -sp.oo)

    tail = normal_cdf(-sp.log(C) / S - S / 2)
    inside = normal_cdf(S / 2 - sp.log(C) / S)
    chains = _chain(
        [part(1, False) + C * part(0, True), part(1, True) - C * part(0, True), part(2, False) + C**2 * part(0, True)],
        [1 - inside + C * tail, inside - C * tail, sp.exp(S**2) * (1 - normal_cdf(3 * S / 2 - sp.log(C) / S)) + C**2 * tail],
        tail, "W <= c iff z <= z_c = (log c + s^2/2)/s: primitives between -inf, z_c and inf", "insert z_c; Phi(-x) = 1 - Phi(x)",
    )  # fmt: skip

    def point(rng: random.Random) -> Symbols:
        return {x: sp.Rational(rng.randint(1, 12), 5) for x in (S, C, Z)}

    return Derivation([squares, *chains], point, lambda case: {S: case.law.sigma, C: case.cap, Z: 0.0})


@lru_cache(maxsize=3)
def _uniform(region: int) -> Derivation:
    density, low, high = 1 / (2 * H), 1 - H, 1 + H
    cut = (low, C, high)[region]

    def of(f: sp.Expr, start: sp.Expr, end: sp.Expr) -> sp.Expr:
        return sp.integrate(f * density, (Z, start, end))

    stated = [
        of(Z, low, cut) + C * of(1, cut, high),
        of(Z - C, cut, high),
        of(Z**2, low, cut) + C**2 * of(1, cut, high),
    ]
    room = (1 + H - C) / (2 * H)
    closed = [
        (C, 1 - H * room**2, sp.Integer(1))[region],
        (1 - C, H * room**2, sp.Integer(0))[region],
        (C**2, (1 - room) * (C**2 + C * low + low**2) / 3 + room * C**2, 1 + H**2 / 3)[region],
    ]

    def point(rng: random.Random) -> Symbols:
        h, part = sp.Rational(rng.randint(1, 9), 10), sp.Rational(rng.randint(1, 9), 10)
        return {H: h, C: (part * (1 - h), 1 - h + 2 * h * part, 1 + h + part)[region]}

    tail = (sp.Integer(1), room, sp.Integer(0))[region]
    why = "integrals of polynomials, split at the cap"
    chains = _chain(stated, closed, tail, why, "collect")
    return Derivation(chains, point, lambda case: {H: case.law.half_width, C: case.cap})


@lru_cache(maxsize=3)
def _two_point(region: int) -> Derivation:
    p = (1 - L) / (U - L)  # the one probability that makes the mean 1

    def mean(f: Callable[[sp.Symbol], Any]) -> sp.Expr:
        return (1 - p) * f(L) + p * f(U)

    stated = [mean(lambda w: sp.Min(w, C)), mean(lambda w: sp.Max(w - C, 0)), mean(lambda w: sp.Min(w, C) ** 2)]
    closed = [
        (C, (1 - p) * L + p * C, sp.Integer(1))[region],
        (1 - C, p * (U - C), sp.Integer(0))[region],
        (C**2, (1 - p) * L**2 + p * C**2, 1 + (1 - L) * (U - 1))[region],
    ]

    def point(rng: random.Random) -> Symbols:
        low, high = sp.Rational(rng.randint(1, 9), 10), 1 + sp.Rational(rng.randint(1, 30), 10)
        part = sp.Rational(rng.randint(1, 9), 10)
        return {L: low, U: high, C: (part * low, low + part * (high - low), high + part)[region]}

    tail = (sp.Integer(1), p, sp.Integer(0))[region]
    why = "two terms; p = (1 - l)/(u - l) makes the mean 1"
    chains = _chain(stated, closed, tail, why, "min and max resolved where the cap lies")
    return Derivation(chains, point, lambda case: {L: case.law.low, U: case.law.high, C: case.cap})


@lru_cache(maxsize=4)
def _finite(below: int) -> Derivation:
    """`below` atoms at or under the cap and two over it; all laws are bound through sums over the atoms on either side."""
    w, p = sp.symbols("w1:5", positive=True), sp.symbols("p1:5", positive=True)
    mass, first, square = sp.symbols("P M Q", nonnegative=True)  # probability, mean and square below the cap

    def mean(f: Callable[[sp.Symbol], Any]) -> sp.Expr:
        return sp.Add(*[a * f(x) for x, a in zip(w, p, strict=True)])

    stated = [mean(lambda x: sp.Min(x, C)), mean(lambda x: sp.Max(x - C, 0)), mean(lambda x: sp.Min(x, C) ** 2)]
    closed = [first + C * (1 - mass), (1 - first) - C * (1 - mass), square + C**2 * (1 - mass)]
    chains = _chain(stated, closed, 1 - mass, "one term per atom; P, M, Q: mass, mean, mean square of the atoms with w <= c",
                    "min(w, c) is w on the atoms below and c on those above; the mean is 1")  # fmt: skip

    def point(rng: random.Random) -> Symbols:
        parts = [rng.randint(1, 9) for _ in w]
        law = [sp.Rational(n, sum(parts)) for n in parts]
        raw = sorted(sp.Rational(n, 7) for n in rng.sample(range(1, 40), len(w)))
        values = [x / sum(a * y for a, y in zip(law, raw, strict=True)) for x in raw]
        ends = [sp.Integer(0), *values, values[-1] + 1]
        sums = {
            s: sum(a * x**k for a, x in zip(law[:below], values, strict=False))
            for k, s in enumerate((mass, first, square))
        }
        return dict(zip((*w, *p), (*values, *law), strict=True)) | sums | {C: (ends[below] + ends[below + 1]) / 2}

    def bind(case: Case) -> Symbols:
        assert case.atoms is not None
        values, law = case.atoms
        kept = values <= case.cap
        return {s: float((law * values**k)[kept].sum()) for k, s in enumerate((mass, first, square))} | {C: case.cap}

    return Derivation(chains, point, bind)


def derive(case: Case) -> Derivation:
    """Pick the derivation of the case's family and region."""
    if isinstance(case.law, LogNormal):
        return _log_normal()
    return {TwoPoint: _two_point, UniformRatio: _uniform, Finite: _finite}[type(case.law)](case.region)
