"""What holds of Kish's effective sample size in every sample: distance from its limit, scale, bounds, the effect of a cap."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import sympy as sp

from theory.derivation import Step

Point = Callable[[random.Random], Mapping[sp.Symbol, Any]]


def _kish(weights: list[Any]) -> sp.Expr:
    return sp.Add(*weights) ** 2 / sp.Add(*[w**2 for w in weights])


def sample_chains() -> tuple[list[list[Step]], Point]:
    """Return the chains, in symbols of their own, and how to draw a valid point for them.

    Three weights stand for any number; under a cap, two weights lie below it and two above.
    """
    x, y, d = (sp.Symbol(name, positive=True) for name in ("X", "Y", "d"))
    limit = [
        Step(
            "split",
            sp.Abs(x**2 / y - 1 / d),
            "X, Y: mean and mean square of the weights of a sample, Kish/n = X^2/Y",
            tex=r"\left|\tfrac{X^2}{Y} - \tfrac{1}{d_2}\right|",
        ),
        Step(
            "rearranged",
            sp.Abs(x**2 / y * (d - y) / d + (x**2 - 1) / d),
            "add and subtract X^2/d2",
            tex=r"\left|\tfrac{X^2}{Y}\tfrac{d_2 - Y}{d_2} + \tfrac{X^2 - 1}{d_2}\right|",
        ),
        Step(
            "triangle",
            (sp.Abs(d - y) + sp.Abs(x**2 - 1)) / d,
            "X^2 <= Y; both vanish as X -> 1 and Y -> d2 (law of large "
            "numbers), and their means are at most sd(W^2)/sqrt n and sqrt(chi2 (4 + chi2/n) / n)",
            relation="<=",
            tex=r"\le \frac{|Y - d_2| + |X^2 - 1|}{d_2}",
        ),
    ]
    v, a = sp.symbols("v1:4", positive=True), sp.Symbol("a", positive=True)
    pairs = [(i, j) for i in range(3) for j in range(i)]
    squares = sp.Add(*[u**2 for u in v])
    scale = [
        Step("scaled", _kish([a * u for u in v]), "every weight times a", tex=r"\frac{(\sum a w)^2}{\sum (a w)^2}"),
        Step("cancelled", _kish(list(v)), "a^2 cancels", tex=r"\frac{(\sum w)^2}{\sum w^2}"),
    ]
    above = [
        Step("room_above", 3 - _kish(list(v)), "n = 3 here; n minus Kish", tex=r"n - \frac{(\sum w)^2}{\sum w^2}"),
        Step(
            "lagrange",
            sp.Add(*[(v[i] - v[j]) ** 2 for i, j in pairs]) / squares,
            "Lagrange's identity",
            tex=r"\sum_{i<j} (w_i - w_j)^2 \big/ \sum w^2",
        ),
        Step("not_negative", sp.Integer(0), "squares; 0 iff all weights are equal", relation=">=", tex=r"\ge 0"),
    ]
    below = [
        Step("room_below", _kish(list(v)) - 1, "Kish minus 1", tex=r"\frac{(\sum w)^2}{\sum w^2} - 1"),
        Step(
            "products",
            2 * sp.Add(*[v[i] * v[j] for i, j in pairs]) / squares,
            "the squares cancel",
            tex=r"2 \sum_{i<j} w_i w_j \big/ \sum w^2",
        ),
        Step(
            "not_negative", sp.Integer(0), "weights are >= 0; 0 iff one weight carries all", relation=">=", tex=r"\ge 0"
        ),
    ]
    c = sp.Symbol("c", positive=True)  # v1, v2 <= c and two weights above it
    capped = [v[0], v[1], c, c]
    total, square = sp.Add(*capped), sp.Add(*[u**2 for u in capped])
    monotone = [
        Step(
            "derivative",
            sp.diff(_kish(capped), c),
            "the two weights above c move with it, the others do not",
            tex=r"\frac{d}{dc} \frac{A^2}{Q}, \quad A = \sum \min(w,c),\; Q = \sum \min(w,c)^2",
        ),
        Step(
            "collected",
            2 * 2 * total * (square - c * total) / square**2,
            "dA/dc = m and dQ/dc = 2 c m, m = #{w > c} = 2",
            tex=r"\frac{2 m A (Q - c A)}{Q^2}",
        ),
        Step(
            "signed",
            -4 * total * sp.Add(*[u * (c - u) for u in v[:2]]) / square**2,
            "weights at the cap drop out of Q - c A",
            tex=r"-\frac{2 m A}{Q^2} \sum_{w \le c} w (c - w)",
        ),
        Step("not_positive", sp.Integer(0), "w <= c in every term", relation="<=", tex=r"\le 0"),
    ]

    def free(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        cap, mean, excess = (sp.Rational(rng.randint(3, 20), 5) for _ in range(3))
        small = [cap * sp.Rational(rng.randint(1, 10), 10) for _ in range(2)]
        weights = {v[0]: small[0], v[1]: small[1], v[2]: cap + excess, c: cap, a: excess}
        return {**weights, x: mean, y: mean**2 + excess, d: 1 + cap}

    return [limit, scale, above, below, monotone], free
