"""Responses weighted by a product of capped segment factors, and the derivation of O8's bound for two segments.

Factors are what each segment multiplies to the weight; O8 caps them one by one, where `spire` caps the product so far.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from testbed.exact.moments import moments
from testbed.exact.second_moments import segment_moments
from testbed.weighting.granularity import log_ratios
from testbed.weighting.truncate import truncate
from theory.derivation import Derivation, Step
from theory.segment_symbols import ends, segment_square, starts
from theory.symbols import symbolic_world
from theory.worlds import World

N, T = sp.Symbol("n", positive=True), sp.Symbol("t", real=True)


@dataclass(frozen=True, kw_only=True)
class SegmentCase:
    """A world of segments, the number of draws, and cap vectors to look at (default: a few small, equal and unequal ones)."""

    world: World
    n: int
    caps: tuple[tuple[float, ...], ...] = ()

    @property
    def name(self) -> str:
        """Name of the world."""
        return self.world.name

    @cached_property
    def largest(self) -> Tensor:
        """D_k: largest second moment of segment k's factor over the histories the behavior can reach."""
        w = self.world
        return segment_moments(w.law, w.env, w.target, w.schedule).largest

    @cached_property
    def average(self) -> Tensor:
        """Second moment of segment k's factor averaged under the behavior."""
        w = self.world
        return segment_moments(w.law, w.env, w.target, w.schedule).average

    @cached_property
    def cap_vectors(self) -> list[tuple[float, ...]]:
        """Cap vectors looked at."""
        count = len(self.largest)
        rising, falling = (tuple(1.0 + k for k in range(count)), tuple(3.0 - k / count for k in range(count)))
        return list(self.caps) or [(0.7,) * count, (1.5,) * count, (3.0,) * count, rising, falling]

    def capped_product(self, caps: Sequence[float] | Tensor) -> Tensor:
        """prod_k min(w_k, c_k) of every response."""
        batch, count = self.world.batch, len(self.largest)
        of_token = log_ratios(batch, "segment")
        factors = [
            torch.where(((batch.segment == k) & batch.mask).any(1),
                        torch.where((batch.segment == k) & batch.mask, of_token, -torch.inf).amax(1), 0.0)
            for k in range(count)
        ]  # fmt: skip
        log_factor = torch.stack(factors, 1)
        return truncate(log_factor, torch.as_tensor(caps).expand_as(log_factor)).prod(1)

    def error(self, caps: Sequence[float] | Tensor, n: int | None = None) -> tuple[float, float, float]:
        """|bias|, second moment and mean squared error of the mean of n independent capped products times the reward."""
        reward = self.world.batch.reward
        found = moments(self.world.law, self.capped_product(caps) * reward)
        value = moments(self.world.target_law, self.world.target_law.batch.reward).mean
        bias = float(found.mean - value)
        return abs(bias), float(found.second), bias**2 + float(found.variance) / (n or self.n)


def _plus(x: sp.Expr) -> sp.Expr:
    return (x + sp.Abs(x)) / 2


@lru_cache(maxsize=8)
def bound_derivation(shape: tuple[Any, ...]) -> Derivation:
    """Derive the bound on the error for worlds of two segments, and its minimum."""
    w = symbolic_world(shape)
    caps = sp.symbols("c0 c1", positive=True)
    paths = []
    for b, y, prob in w.draws():
        first = w.weight(y, b, ends(w, y, b, 0))
        second = sp.prod([w.rho(k, h, a) for h, a, k in w.path(y, b) if k == 1])
        paths.append((prob, (first, second), w.reward(y)))

    def low(x: sp.Expr, c: sp.Expr) -> sp.Expr:
        return (x + c - sp.Abs(x - c)) / 2

    def expect(of: Any) -> sp.Expr:
        return sp.Add(*[prob * of(factors, r) for prob, factors, r in paths])

    squares = [{at: segment_square(w, at[0], k, at[1]) for at in starts(w, k)} for k in range(2)]
    sups = [sp.Max(*dict.fromkeys(s.values()), evaluate=False) for s in squares]
    lost = expect(lambda v, r: (v[0] * v[1] - low(v[0], caps[0]) * low(v[1], caps[1])) * r)
    second = expect(lambda v, r: (low(v[0], caps[0]) * low(v[1], caps[1]) * r) ** 2)
    kept = expect(lambda v, r: low(v[0], caps[0]) * low(v[1], caps[1]) * r)
    telescoped = [
        expect(lambda v, r: _plus(v[0] - caps[0]) * v[1]),
        expect(lambda v, r: low(v[0], caps[0]) * _plus(v[1] - caps[1])),
    ]
    bias = sp.Add(*[sups[k] / (4 * caps[k]) for k in range(2)])
    chains = [
        [
            Step("lost", sp.Abs(lost), "minus the bias", quantity="bias",
                 tex=r"|E[(w_1 w_2 - \min(w_1,c_1)\min(w_2,c_2)) f]|"),
            Step("telescope", sp.Add(*telescoped), "|f| <= 1; change one factor at a time, earlier ones capped", "<=",
                 tex=r"E[(w_1-c_1)_+ w_2] + E[\min(w_1,c_1)(w_2-c_2)_+]"),
            Step("parabolas", bias, "given the past later factors have mean 1, (w_k-c_k)+ at most d2_k(H)/(4c_k) <= D_k/(4c_k), "
                 "and earlier ones mean 1 or less", "<=", quantity="bias_bound", tex=r"\sum_k \frac{D_k}{4 c_k}"),
        ],
        [
            Step("second", second, "second moment of one term", quantity="second", tex=r"E[\min(w_1,c_1)^2\min(w_2,c_2)^2 f^2]"),
            Step("products", sp.prod(caps) * expect(lambda v, r: v[0] * v[1]), "min(w,c)^2 <= c w in every factor", "<=",
                 tex=r"c_1 c_2\,E[w_1 w_2]"),
            Step("mean_one", sp.prod(caps), "E W = 1", quantity="product", tex=r"\prod_k c_k"),
        ],
        [
            Step("error", lost**2 + (second - kept**2) / N, "bias^2 + variance/n", quantity="mse",
                 tex=r"\mathrm{bias}^2 + \frac1n\mathrm{Var}"),
            Step("bound", bias**2 + sp.prod(caps) / N, "both", "<=", quantity="bound",
                 tex=r"\Big(\sum_k\frac{D_k}{4c_k}\Big)^2 + \frac1n\prod_k c_k"),
        ],
    ]  # fmt: skip
    if w.eos is None and len(w.branches) == 1:  # the minimum does not depend on the world: once is enough
        chains += optimum_chains(2)

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        values = {**w.point(rng), **optimum_point(2, rng)}
        for y in w.leaves:
            values[w.reward(y)] = sp.Rational(rng.randint(-8, 8), 8)
        return {**values, **{c: sp.Rational(rng.randint(1, 24), 8) for c in caps}}

    def bind(instance: SegmentCase) -> Mapping[sp.Symbol, Any]:
        vectors = np.array(instance.cap_vectors).T
        return {
            **w.bind(instance.world),
            **optimum_bind(instance),
            **dict(zip(caps, vectors, strict=True)),
            N: instance.n,
        }

    return Derivation(chains, point, bind)


def _symbols(count: int) -> tuple[tuple[sp.Symbol, ...], ...]:
    return (
        sp.symbols(f"D0:{count}", positive=True),
        sp.symbols(f"x0:{count}", real=True),
        sp.symbols(f"v0:{count}", real=True),
    )


@lru_cache(maxsize=8)
def optimum_chains(count: int) -> list[list[Step]]:
    """The bound's minimum over caps, for `count` segments: convex in log c, stationary at c_k proportional to D_k."""
    d, x, v = _symbols(count)

    def bound(logs: Sequence[sp.Expr]) -> sp.Expr:
        share = sp.Add(*[a / 4 * sp.exp(-b) for a, b in zip(d, logs, strict=True)])
        return share**2 + sp.exp(sp.Add(*logs)) / N

    moved = bound([b + T * e for b, e in zip(x, v, strict=True)])
    pairs = [(i, j) for i in range(count) for j in range(count)]
    curvature = sp.Add(
        *[d[i] * d[j] / 16 * sp.exp(-x[i] - x[j]) * (v[i] + v[j]) ** 2 for i, j in pairs],
        sp.Add(*v) ** 2 * sp.exp(sp.Add(*x)) / N,
    )
    s = (sp.prod(d) / (2 * count * N * 4**count)) ** sp.Rational(1, count + 2)
    best = [a / (4 * s) for a in d]
    sizes = sp.Add(*[a / 4 for a in d])
    level = (2 * N * sizes**2 / count) ** sp.Rational(1, count + 2)  # best cap common to all segments
    return [
        [
            Step("curvature", sp.diff(moved, T, 2).subs(T, 0), "second derivative in log c along a direction v",
                 tex=r"\partial_t^2\,\mathrm{bound}(c\,e^{tv})"),
            Step("squares", curvature, "the bound is a sum of exponentials with positive factors",
                 tex=r"\sum_{ij}\frac{D_iD_j}{16c_ic_j}(v_i+v_j)^2 + \frac{\prod c}{n}(\textstyle\sum v)^2"),
            Step("diagonal", sp.Add(*[d[i] ** 2 / 4 * sp.exp(-2 * x[i]) * v[i] ** 2 for i in range(count)]),
                 "keep the squares i = j: positive for every v != 0, so the minimizer is unique", ">=",
                 tex=r"\sum_i \frac{D_i^2}{4c_i^2}v_i^2"),
        ],
        [
            Step("slope", [sp.diff(bound(x), b).subs(dict(zip(x, [sp.log(c) for c in best], strict=True))) for b in x],
                 "derivative in log c_k at the caps stated",
                 tex=r"-2\Big(\sum_j\frac{D_j}{4c_j}\Big)\frac{D_k}{4c_k} + \frac{\prod c}{n}"),
            Step("zero", [0] * count, "D_k/(4c_k) = s for every k, and 2 K n s^2 = prod c", tex="0"),
        ],
        [Step("caps", best, "the minimizer", quantity="caps", tex=r"c_k = \frac{D_k}{4s}")],
        [
            Step("at_the_caps", bound([sp.log(c) for c in best]), "the bound there", quantity="least",
                 tex=r"\mathrm{bound}(c)"),
            Step("value", count * (count + 2) * s**2, "K^2 s^2 + 2 K s^2", quantity="value", tex=r"K(K+2)s^2"),
        ],
        [
            Step("common", bound([sp.log(level)] * count), "the best of all equal caps", quantity="common",
                 tex=r"\Big(\sum_k \frac{D_k}{4c}\Big)^2 + \frac{c^K}{n},\quad "
                     r"c^{K+2} = \tfrac{2n}{K}\Big(\sum_k\tfrac{D_k}{4}\Big)^2"),
            Step("means", (count + 2) / sp.Integer(count) * sizes**2 / level**2, "c^K/n = (2/K) (sum D/(4c))^2",
                 tex=r"\tfrac{K+2}{K}\Big(\sum_k \frac{D_k}{4c}\Big)^2"),
            Step("geometric", count * (count + 2) * s**2, "mean of D >= geometric mean of D, equality iff all are equal", ">=",
                 tex=r"K(K+2)s^2"),
        ],
    ]  # fmt: skip


def optimum_point(count: int, rng: random.Random) -> dict[sp.Symbol, Any]:
    """Random values of the symbols of `optimum_chains`."""
    d, x, v = _symbols(count)
    return {
        **{a: sp.Rational(rng.randint(8, 60), 8) for a in d},
        **{a: sp.Rational(rng.randint(-8, 8), 5) for a in (*x, *v)},
        N: sp.Integer(rng.randint(1, 60)),
    }


def optimum_bind(instance: Any) -> dict[sp.Symbol, Any]:
    """Numbers of an instance that has `largest` and `n`."""
    d, _, _ = _symbols(len(instance.largest))
    return {**dict(zip(d, instance.largest.tolist(), strict=True)), N: float(instance.n)}


@lru_cache(maxsize=8)
def optimum_derivation(count: int) -> Derivation:
    """Derivation of the minimum alone, for any number of segments."""
    return Derivation(optimum_chains(count), lambda rng: optimum_point(count, rng), optimum_bind)
