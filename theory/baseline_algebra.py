"""Variance and mean of W (R - b) s as functions of a constant baseline b, over the symbols of a world."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy as sp

from theory.derivation import Derivation, Step
from theory.symbols import Prefix, symbolic_world
from theory.worlds import World


@lru_cache(maxsize=32)
def baseline_derivation(shape: tuple[Any, ...], deterministic: bool, cap: float, given: float) -> Derivation:
    """Variance as a parabola in the baseline b, its vertex and depth; the mean under weights capped at `cap` for b = `given`."""
    w = symbolic_world(shape)
    b, e = sp.Symbol("b", real=True), sp.Symbol("e", real=True)
    draws = w.draws()
    kept = {(xi, y): sp.Symbol(f"k{xi}_{''.join(map(str, y))}", nonnegative=True) for xi, y, _ in draws}  # min(W, c)

    def score(y: Prefix) -> list[sp.Expr]:
        return [sp.Add(*[w.score(y, t, h, a) for t in range(len(y))]) for h, a in w.parameters]

    scores = {y: score(y) for y in w.leaves}
    length = {y: sp.Add(*[s**2 for s in scores[y]]) for y in w.leaves}

    def second(factor: Any) -> sp.Expr:
        """E[W^2 |s|^2 factor(y)]."""
        return sp.Add(*[p * w.weight(y, xi) ** 2 * length[y] * factor(y) for xi, y, p in draws])

    def first(weight: Any, factor: Any) -> list[sp.Expr]:
        """E[weight factor(y) s], one component per logit."""
        terms = [(p * weight(xi, y) * factor(y), scores[y]) for xi, y, p in draws]
        return [sp.Add(*[t * s[i] for t, s in terms]) for i in range(len(w.parameters))]

    def centered(y: Prefix) -> sp.Expr:
        return w.reward(y) - b

    moment, weighted = second(lambda y: 1), second(w.reward)
    drifts = first(lambda xi, y: w.weight(y, xi), lambda y: 1)
    mean = first(lambda xi, y: w.weight(y, xi), centered)
    gradient = w.gradient()
    constant = sp.Add(*[g**2 for g in gradient])
    parabola = second(lambda y: w.reward(y) ** 2) - 2 * b * weighted + b**2 * moment - constant
    best = weighted / moment
    no_drift = [
        Step(
            "score",
            [d.xreplace(w.rho_definition()) for d in drifts],
            "E[W s], ratios inserted: the sampler's law cancels",
            tex=r"E_\mu[W s] = \sum_y \pi(y) \nabla \log \pi(y)",
        ),
        Step("zero", [sp.Integer(0)] * len(drifts), "the probabilities sum to 1 whatever the logits", tex=r"0"),
    ]
    unbiased = [
        Step(
            "definition",
            [m.xreplace(w.rho_definition()) for m in mean],
            "E[W (R - b) s] for any constant b",
            tex=r"E_\mu[W (R - b) s]",
        ),
        Step(
            "gradient",
            gradient,
            "b multiplies E[W s] = 0; the rest is grad J, by differentiating J",
            quantity="gradient",
            tex=r"G",
        ),
    ]
    variance = [
        Step(
            "definition",
            second(lambda y: centered(y) ** 2) - sp.Add(*[m**2 for m in mean]),
            "trace of the variance of W (R - b) s",
            tex=r"E[W^2 |s|^2 (R - b)^2] - |E[W (R - b) s]|^2",
        ),
        Step(
            "parabola",
            parabola,
            "the mean is G for every b; expand the square",
            tex=r"E[W^2|s|^2R^2] - 2 b N + b^2 D - |G|^2",
        ),
    ]
    optimum = [
        Step("slope", sp.diff(parabola, b).subs(b, best), "slope of the parabola at b* = N/D", tex=r"-2 N + 2 b^* D"),
        Step("zero", sp.Integer(0), "stationary", tex=r"0"),
    ]
    value = [
        Step(
            "baseline",
            best,
            "N/D in the sampler's law and the recorded ratios",
            quantity="baseline",
            tex=r"b^* = E_\mu[W^2 |s|^2 R] \big/ E_\mu[W^2 |s|^2]",
        ),
        Step("tilted", best.xreplace(w.rho_definition()), "a mean of R under pi^2/mu |s|^2, normalized", tex=r"N / D"),
    ]
    neighbor = [
        Step(
            "step",
            parabola.subs(b, best + e) - parabola.subs(b, best),
            "variance at b* + e minus that at b*",
            tex=r"V(b^* + e) - V(b^*)",
        ),
        Step("square", e**2 * moment, "the linear term vanished", tex=r"e^2 D"),
        Step(
            "not_negative",
            sp.Integer(0),
            "D is a mean of squares; 0 iff e = 0 or no score",
            relation=">=",
            tex=r"\ge 0",
        ),
    ]
    drop = [
        Step(
            "gained",
            parabola.subs(b, 0) - parabola.subs(b, best),
            "variance without a baseline minus that at b*",
            tex=r"V(0) - V(b^*)",
        ),
        Step("drop", weighted**2 / moment, "e = -b* in the line above", quantity="drop", tex=r"N^2 / D"),
    ]
    loss = first(lambda xi, y: kept[xi, y] - w.weight(y, xi), centered)
    apart = zip(first(lambda xi, y: w.weight(y, xi) - kept[xi, y], w.reward),
                first(lambda xi, y: w.weight(y, xi) - kept[xi, y], lambda y: 1), strict=True)  # fmt: skip
    capped = [
        Step("definition", [m - g for m, g in zip(first(lambda xi, y: kept[xi, y], centered), gradient, strict=True)],
             "mean of the update with k = min(W, c), minus the gradient", quantity="capped_bias", tex=r"E_\mu[k (R - b) s] - G"),
        Step("excess", loss, "G = E[W (R - b) s]", quantity="lost", tex=r"-E_\mu[(W - c)_+ (R - b) s]"),
        Step("apart", [b * m - r for r, m in apart], "the baseline's own part is b E[(W - c)+ s]",
             tex=r"-E_\mu[(W - c)_+ R s] + b\, E_\mu[(W - c)_+ s]"),
    ]  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        free = {k: sp.Rational(rng.randint(0, 8), 5) for k in kept.values()}
        return {**w.point(rng), **free, b: sp.Rational(rng.randint(-9, 9), 4), e: sp.Rational(rng.randint(-9, 9), 7)}

    def bind(instance: World) -> Mapping[sp.Symbol, float]:
        values = w.bind(instance)
        cut = {k: min(float(w.weight(y, xi).xreplace(values)), cap) for (xi, y), k in kept.items()}
        return {**values, **cut, b: given, e: 0.0}

    # where the target is deterministic every score is 0, and N/D is a constant of no consequence
    divided = [] if deterministic else [optimum, value, neighbor, drop]
    return Derivation([no_drift, unbiased, variance, *divided, capped], point, bind)
