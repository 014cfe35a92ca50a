"""C13: how much of a correction to apply: the vertex of a parabola that knows the bias, unlike diagnostics of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
from torch import Tensor

from testbed.estimators import interpolation
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.interpolation import Interpolation, optimal_interpolation
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.weighting.adaptive import ais_alpha
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.small_worlds import small_worlds
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

A, BIAS2, V0, COV, SPREAD = sp.symbols("a b2 v0 c s", real=True)
ALPHAS = np.linspace(0.0, 1.0, 21)
MANY = 1e8


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A world and the number of responses whose mean is taken."""

    name: str
    world: World
    n: int


def terms(world: World, rule: str) -> Tensor:
    """Gradient terms of every response, [N, parameters]."""
    return gradient_terms(world.batch, weigh(rule, world.batch), world.target).flatten(1)


def exact_error(instance: Batch, alpha: float) -> float:
    """Squared bias plus variance of the batch mean under `ais` with this alpha, from the moments of its terms."""
    world = instance.world
    w = weigh("ais", world.batch, alpha=alpha, granularity="sequence_product")
    m = moments(world.law, gradient_terms(world.batch, w, world.target))
    truth = exact_gradient(world.env, world.target)
    return float(((m.mean - truth) ** 2).sum() + m.variance.sum() / instance.n)


def measure(instance: Batch, corrected: str = "sequence_product") -> Quantities:
    """The library's parabola and vertex against errors by enumeration. Mutants correct with another weight."""
    world, n = instance.world, instance.n
    plain, whole = terms(world, "none"), terms(world, corrected)
    best = optimal_interpolation(plain, whole, n=n, probs=world.law.probs)
    errors = [exact_error(instance, float(a)) for a in ALPHAS]
    found: dict[str, Any] = {
        "parabola": [best.mse(float(a)) for a in ALPHAS], "errors": errors,
        "least": best.mse(best.alpha), "others": errors, "low": -best.alpha, "high": best.alpha - 1, "zero": 0.0,
        "many": optimal_interpolation(plain, whole, n=MANY, probs=world.law.probs).alpha, "one": 1.0,
        "by_diagnostics": exact_error(instance, ais_alpha(world.batch, "sequence_product")),
    }  # fmt: skip
    if 0 < best.alpha < 1:
        found["vertex"] = best.alpha
    if instance.name.startswith("on_policy"):
        found["same"] = best.alpha
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    probabilities = sp.symbols("w1 w2", positive=True)
    g0, g1, n = sp.symbols("x1 x2", real=True), sp.symbols("y1 y2", real=True), sp.Symbol("n", positive=True)

    def mean(values: Any) -> sp.Expr:
        return sp.Add(*[w * v for w, v in zip(probabilities, values, strict=True)])

    def cov(u: Any, v: Any) -> sp.Expr:
        return mean([a * b for a, b in zip(u, v, strict=True)]) - mean(u) * mean(v)

    mixed, step = (
        [(1 - A) * u + A * v for u, v in zip(g0, g1, strict=True)],
        [v - u for u, v in zip(g0, g1, strict=True)],
    )
    parts = {
        BIAS2: (mean(g0) - mean(g1)) ** 2,
        V0: cov(g0, g0) / n,
        COV: cov(g0, step) / n,
        SPREAD: cov(step, step) / n,
    }
    parabola = (1 - A) ** 2 * BIAS2 + V0 + 2 * A * COV + A**2 * SPREAD
    chains = [
        [
            Step("error", (mean(mixed) - mean(g1)) ** 2 + cov(mixed, mixed) / n, "squared bias and variance of (1-a) g0 + a "
                 "g1, E g1 = G",
                 tex=r"\|(1-a)E g_0 + a G - G\|^2 + \tfrac1n\mathrm{Var}((1-a)g_0 + a g_1)"),
            Step("parabola", parabola.xreplace(parts), "collect in a", tex=r"(1-a)^2\|b_0\|^2 + V_0 + 2a\,c + a^2 s"),
        ],
        [
            Step("at_a_share", parabola, "as a function of the share", quantity="parabola",
                 tex=r"(1-a)^2\|b_0\|^2 + V_0 + 2a\,c + a^2 s"),
            Step("powers", BIAS2 + V0 + 2 * A * (COV - BIAS2) + A**2 * (BIAS2 + SPREAD), "in powers of a",
                 tex=r"\|b_0\|^2 + V_0 + 2a(c - \|b_0\|^2) + a^2(\|b_0\|^2 + s)"),
        ],
        [
            Step("stationary", sp.solve(sp.diff(parabola, A), A)[0], "it opens upward: set its slope to 0", quantity="vertex",
                 tex=r"-2(1-a)\|b_0\|^2 + 2c + 2as = 0"),
            Step("vertex", (BIAS2 - COV) / (BIAS2 + SPREAD), "solved", tex=r"\frac{\|b_0\|^2 - c}{\|b_0\|^2 + s}"),
        ],
        [
            Step("many", sp.limit(((BIAS2 - COV / n) / (BIAS2 + SPREAD / n)), n, sp.oo), "variances fall as 1/n, the bias stays",
                 tex=r"\lim_{n\to\infty}"),
            Step("whole", sp.Integer(1), "the whole correction in the end", tex="1"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(-20, 20), 7)  # noqa: E731
        w = sp.Rational(rng.randint(1, 8), 9)
        numbers = {
            probabilities[0]: w,
            probabilities[1]: 1 - w,
            n: rng.randint(1, 9),
            A: sp.Rational(rng.randint(0, 9), 9),
        }
        numbers |= {x: draw() for x in (*g0, *g1)}
        return numbers | {BIAS2: draw() ** 2 + 1, V0: draw() ** 2, COV: draw(), SPREAD: draw() ** 2 + 1}

    def bind(instance: Batch) -> dict[sp.Symbol, Any]:
        law = instance.world.law.probs.numpy()
        plain, whole = (terms(instance.world, rule).numpy() for rule in ("none", "sequence_product"))
        step = whole - plain
        around = [x - law @ x for x in (plain, step)]
        trace = lambda u, v: float(law @ (u * v).sum(1)) / instance.n  # noqa: E731
        spread = trace(around[1], around[1]) if np.any(step) else 1e-300  # equal gradients: every share is best
        numbers = {A: ALPHAS, V0: trace(around[0], around[0])}
        return numbers | {BIAS2: float(((law @ step) ** 2).sum()), COV: trace(*around), SPREAD: spread}

    return Derivation(chains, point, bind)


def instances() -> list[Batch]:
    """The small worlds with few and with many responses; a vertex below 0 (one response), some above 1."""
    worlds = small_worlds()
    single = next(w for w in worlds if w.name == "empty_segment")
    return [
        Batch(name="empty_segment_1", world=single, n=1),
        *(Batch(name=f"{world.name}_{n}", world=world, n=n) for world in worlds for n in (4, 256)),
    ]


def covariance_ignored(right: Any) -> Any:
    """Bug: the two gradients taken for uncorrelated."""

    def wrong(*args: Any, **kw: Any) -> Interpolation:
        best = right(*args, **kw)
        curvature = best.bias2 + best.spread
        alpha = best.bias2 / curvature if curvature else 1.0
        return Interpolation(alpha, best.bias2, best.variance, 0.0, best.spread)

    return wrong


def not_clipped(right: Any) -> Any:
    """Bug: the vertex itself."""

    def wrong(*args: Any, **kw: Any) -> Interpolation:
        best = right(*args, **kw)
        curvature = best.bias2 + best.spread
        alpha = (best.bias2 - best.covariance) / curvature if curvature else 1.0
        return Interpolation(alpha, best.bias2, best.variance, best.covariance, best.spread)

    return wrong


def one_response(right: Any) -> Any:
    """Bug: variances of one response, whatever the batch."""
    return lambda uncorrected, corrected, n=None, probs=None: right(uncorrected, corrected, n=1, probs=probs)


THEOREM = Theorem(
    id="C13",
    kind="optimum",
    title="the best share of a correction is a vertex that needs the bias",
    hypotheses=("independent responses; g0, g1 are batch means of uncorrected and corrected terms", "E g1 = G, E g0 = G + b0"),
    statement="the error of (1-a) g0 + a g1 is (1-a)^2 |b0|^2 + Var g0 + 2a Cov(g0, g1-g0) + a^2 Var(g1-g0), traces, with its "
    "minimum at a* = (|b0|^2 - Cov(g0, g1-g0))/(|b0|^2 + Var(g1-g0)), clipped to [0,1]; a* -> 1 as n grows if b0 is not 0",
    source="ours; AIS (arXiv 2605.13907) chooses a by three diagnostics of the weights, whose formula is a reading",
    reading=True,
    claims=(
        Claim("parabola", "equal", "parabola", "errors", "the library's parabola is the exact error of `ais` at every alpha"),
        Claim("optimum", "at_most", "least", "others", "no share of a grid errs less than a*"),
        Claim("at_least_0", "at_most", "low", "zero", "a* >= 0"),
        Claim("at_most_1", "at_most", "high", "zero", "a* <= 1"),
        Claim("many", "equal", "many", "one", "with very many responses the whole correction, to five digits", tolerance=1e-5),
        Claim("diagnostics", "at_most", "least", "by_diagnostics", "three diagnostics of the weights never do better"),
        Claim("on_policy", "equal", "same", "one", "where both gradients are the same, the library says 1"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="How much to correct depends on the bias of not correcting and on n; the weights alone cannot tell.",
    mutants=(
        Mutant(name="correction_is_biased", kind="hypothesis", breaks=("parabola",), on=("three_tokens_256", "end_token_256"),
               measure=partial(measure, corrected="exact"),
               why="token ratios do not correct a response (S5): E g1 = G dropped; needs two positions"),
        Mutant(name="covariance_ignored", kind="bug", breaks=("parabola", "optimum"), on=("three_tokens_4",),
               plant=lambda: planted(interpolation, "optimal_interpolation", covariance_ignored),
               why="corrected and uncorrected gradients come from the same responses"),
        Mutant(name="not_clipped", kind="bug", breaks=("at_least_0", "at_most_1"), on=("empty_segment_1", "two_segments_4"),
               plant=lambda: planted(interpolation, "optimal_interpolation", not_clipped),
               why="the vertex may lie outside [0, 1]; needs a batch where it does"),
        Mutant(name="batch_size_ignored", kind="bug", breaks=("parabola", "optimum", "many", "diagnostics"), on=(
               "three_tokens_256",),
               plant=lambda: planted(interpolation, "optimal_interpolation", one_response),
               why="variances that do not fall with n: the share stays where one response has it"),
    ),
)  # fmt: skip
