"""O1: the cap of least mean squared error for a constant signal is the root of c = 1 + (n-1) B(c)."""

from __future__ import annotations

import random
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
from scipy.optimize import minimize_scalar

from testbed.weighting import cap_exact, segment
from testbed.weighting.cap_exact import second_moment_cap
from testbed.weighting.cap_law import cap_law, capped_error
from testbed.weighting.cap_signal import error_slopes
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from theory.cap_cases import CapCase, atoms, real_weights
from theory.cap_slope import ERROR, ONE, SECOND_MOMENT_ERROR, SLOPE, A, C, G, N, S, Symbols, T, moved, random_sums
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.spire_batch import automatic_weights, automatic_weights_of
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_caps import COUNTED, TransformerCaps, transformer_caps

AROUND = (-0.5, -0.1, -1e-2, -1e-4, 1e-4, 1e-2, 0.1, 0.5)  # relative distances from the cap
GRID = 200


def degenerate(law: Any) -> bool:
    """Whether the weight is the constant 1: the hypothesis the root formula needs to be the only optimum."""
    return law.supremum == 1.0


def second_moment_quantities(instance: CapCase) -> dict[str, Any]:
    """The variant with E min^2 in place of the variance: its cap, its optimality, what it does on policy."""
    law = instance.law
    values, probs = atoms(law)
    cap = second_moment_cap(cap_law(values, probs), instance.n)

    def objective(c: float) -> float:
        return law.excess(c) ** 2 + law.capped_second_moment(c) / instance.n

    found = {
        "second_cap": cap, "second_root": instance.n * law.excess(cap),
        "slope": [error_slopes(values, probs, cap=c, n=instance.n)[1] for c in instance.caps],
        "second_least": objective(cap), "second_others": [objective(c) for c in (*instance.caps, *around(cap))],
    }  # fmt: skip
    if degenerate(law):
        found |= {"on_policy_cap": cap, "share": instance.n / (instance.n + 1)}
        found |= {"second_bias": instance.error(cap).bias, "no_bias": 0.0}
    if instance.name == "near_on_policy":
        found |= {"near_cap": cap, "one": 1.0}
    return found


def around(cap: float) -> list[float]:
    """Caps near this one, from close to far."""
    return [cap * (1 + step) for step in AROUND]


def measure(instance: CapCase, signal: tuple[float, ...] | None = None, everywhere: bool = False) -> Quantities:
    """Library's cap against its equation, a grid, all weights, a numerical minimizer; the error on both sides of it.

    Mutants multiply the weight by a `signal`, or ask the same of constant weights (`everywhere`).
    """
    law, n = instance.law, instance.n
    cap = float(optimal_cap(law, None, n))

    def error(c: float) -> float:
        if signal is None:
            return instance.error(c).mse
        return capped_error(*atoms(law), cap=c, n=n, signal=signal).mse

    at_cap = CapCase(name="at_cap", law=law, n=n, caps=(cap,)).integrals()[:, 0]
    values: dict[str, Any] = {"cap": cap, "root": 1 + (n - 1) * at_cap[1], "least": error(cap)}
    top = min(law.supremum, 3 * n)
    grid = [*np.linspace(0.0, top, GRID + 1), *instance.caps, *around(cap)]
    if instance.listed:
        grid += list(atoms(law)[0])
    values["others"] = [error(c) for c in grid]
    values |= {"below": cap, "supremum": law.supremum}
    if isinstance(law, Finite | TwoPoint):
        values |= second_moment_quantities(instance)
    if instance.listed and min(atoms(law)[0]) > 0:
        values["applied"], values["capped_at_root"] = automatic_weights(list(atoms(law)[0]))
    if isinstance(instance, TransformerCaps):
        values |= {"counted": instance.counted(), "by_law": instance.errors(COUNTED)}
        values["applied"], values["capped_at_root"] = automatic_weights_of(instance.world.batch)
    if degenerate(law) and not everywhere:
        return values | {"bias": instance.error(cap).bias, "none": 0.0}
    values |= {"acts": float(law.tail(cap) > 0), "yes": 1.0}
    rise, fall = np.linspace(cap, top, 40), np.linspace(0.0, cap, 40)
    low, high = np.array([error(c) for c in fall]), np.array([error(c) for c in rise])
    values |= {"fall_before": low[:-1], "fall_after": low[1:], "rise_before": high[:-1], "rise_after": high[1:]}
    search = minimize_scalar(error, bounds=(0.0, top), method="bounded", options={"xatol": 1e-9})
    return values | {"numeric": search.x}


def instances() -> list[CapCase]:
    """Continuous, two-point and three-point laws, recorded ones, a transformer's, a single draw, weights near and at 1."""
    return [
        CapCase(name="log_normal_16", law=LogNormal(1.2), n=16),
        CapCase(name="log_normal_1024", law=LogNormal(2.0), n=1024),
        CapCase(name="uniform", law=UniformRatio(0.8), n=12),
        CapCase(name="two_point", law=TwoPoint(0.0, 2.0), n=8),
        CapCase(name="rare_and_large", law=TwoPoint(0.9, 30.0), n=16),
        CapCase(name="three_atoms", law=Finite([0.2, 1.0, 5.0], [0.5, 0.4, 0.1]), n=20),
        CapCase(name="single_draw", law=Finite([0.2, 1.0, 5.0], [0.5, 0.4, 0.1]), n=1),
        CapCase(name="near_on_policy", law=TwoPoint(0.95, 1.05), n=8),
        CapCase(name="on_policy", law=TwoPoint(1.0, 1.0), n=8),
        CapCase(name="recorded_stale", law=real_weights(6, "v0_bf16"), n=64),
        CapCase(name="recorded_heavy", law=real_weights(2, "v1_int8_dynamic"), n=64),
        *transformer_caps(),
    ]


AR, TR, AS, TS = (sp.Symbol(name, positive=True) for name in ("A_r", "T_r", "A_s", "T_s"))  # at the two roots


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    excess = A[0] - C * T
    closed, second = (1 + (N - 1) * AR) / (1 + (N - 1) * TR), N * AS / (1 + N * TS)
    at_root = {A[0]: C * T + (C - 1) / (N - 1)}
    slopes = [
        Step("total", moved(ERROR).xreplace(ONE), "move the cap: its own change, and outcomes of weight c that change sides",
             tex=r"\frac{d}{dc}\Big[B^2 + \frac{E\min(W,c)^2 - (E\min(W,c))^2}{n}\Big]"),
        Step("sides", SLOPE.xreplace(ONE), "what changes sides at weight c changes nothing: (W-c)+ = 0 and min(W,c) = W there",
             tex=r"2\Big[-B\,P + \frac{cP - (1-B)P}{n}\Big],\quad P = P(W > c)"),
        Step("factor", 2 * T / N * (C - 1 - (N - 1) * excess), "E min(W,c) = 1 - B", quantity="slope",
             tex=r"\frac{2P}{n}\,\big(c - 1 - (n-1)B(c)\big)"),
    ]  # fmt: skip
    roots = [
        Step("closed", closed, "linear equation on the piece of the root: B = E[W; W > c] - cP", quantity="cap",
             tex=r"c^* = \frac{1 + (n-1)\,E[W; W > c^*]}{1 + (n-1)\,P(W > c^*)}"),
        Step("inserted", 1 + (N - 1) * (AR - closed * TR), "insert it in B", quantity="root", tex=r"1 + (n-1)\,B(c^*)"),
    ]  # fmt: skip
    bend = [
        Step("bend", moved(SLOPE).xreplace(ONE).xreplace(at_root), "second derivative where the bracket is 0",
             tex=r"\frac{d}{dc}\,\frac{2P}{n}\big(c - 1 - (n-1)B\big)\Big|_{c = c^*}"),
        Step("positive", 2 * T * (1 + (N - 1) * T) / N, "B' = -P: the bracket rises with slope 1 + (n-1)P > 0, so it has one "
             "root; the density of W multiplies the bracket, which is 0", tex=r"\frac{2P}{n}\big(1 + (n-1)P\big)"),
        Step("minimum", sp.Integer(0), "so the only root is a minimum", ">=", tex="0"),
    ]  # fmt: skip
    variant = [
        Step("total", moved(SECOND_MOMENT_ERROR).xreplace(ONE), "the same with E min(W,c)^2 in place of the variance",
             tex=r"\frac{d}{dc}\Big[B^2 + \frac{E\min(W,c)^2}{n}\Big]"),
        Step("factor", 2 * T / N * (C - N * excess), "root: c = n B(c)", tex=r"\frac{2P}{n}\,(c - n B(c))"),
    ]  # fmt: skip
    variant_root = [
        Step("closed", second, "its root on the piece; n/(n+1) at W = 1", quantity="second_cap",
             tex=r"\frac{n\,E[W; W > c]}{1 + n\,P(W > c)}"),
        Step("inserted", N * (AS - second * TS), "insert it in B", quantity="second_root", tex=r"n B(c)"),
    ]  # fmt: skip

    def point(rng: random.Random) -> Symbols:
        values = random_sums(rng)
        return values | {x: sp.Rational(rng.randint(1, 9), 7) for x in (AR, TR, AS, TS)}

    return Derivation([slopes, roots, bend, variant, variant_root], point, _bind)


def _bind(instance: CapCase) -> Symbols:
    """Sums above the caps by quadrature or outcome by outcome; those at the roots at the roots the library found."""
    cap = float(optimal_cap(instance.law, None, instance.n))
    second = 1.0
    if isinstance(instance.law, Finite | TwoPoint):
        second = second_moment_cap(cap_law(*atoms(instance.law)), instance.n)
    rows = CapCase(name="bound", law=instance.law, n=instance.n, caps=(*instance.caps, cap, second)).integrals()
    mass, excess = rows[3], rows[1]
    above = excess + np.array([*instance.caps, cap, second]) * mass
    return {
        C: np.array(instance.caps), N: float(instance.n), A[0]: above[:-2], T: mass[:-2], S: 0.0, G: 0.0,
        AR: above[-2], TR: mass[-2], AS: above[-1], TS: mass[-1],
    }  # fmt: skip


def one_more_draw(right: Any) -> Any:
    """Bug: n in place of n - 1."""
    return lambda law, n: right(law, n + 1)


def second_moment_instead(right: Any) -> Any:
    """Bug: the second moment of the capped weight taken for its variance."""
    return lambda law, n: second_moment_cap(law, n)


def reversed_weights(right: Any) -> Any:
    """Bug: half of the weights in reverse order for B at the weights."""
    return lambda law: (law.values[::-1] * 0.5, right(law)[1])


def whole_response(right: Any) -> Any:
    """Bug: the product over the whole response for the product through the end of a segment."""
    return lambda batch, segments: right(batch, segments)[:, -1:].expand(-1, segments)


def only_constant() -> list[CapCase]:
    """Constant weights."""
    return [w for w in instances() if w.name == "on_policy"]


THEOREM = Theorem(
    id="O1",
    kind="optimum",
    title="the exact cap for a constant signal: the only root of c = 1 + (n-1) B(c)",
    hypotheses=(
        "W >= 0 has mean 1 and is not constant",
        "n independent draws; the estimator is the mean of min(W, c) times a constant signal",
        "the error is bias^2 + variance/n, the variance that of the capped weight",
    ),
    statement="B(c)^2 + Var(min(W,c))/n has one minimum below ess sup W, the root of c = 1 + (n-1) B(c), B(c) = E(W-c)+; "
    "it falls before and rises after. With E min(W,c)^2 in place of the variance the root is that of c = n B(c), "
    "which is n/(n+1) < 1 at W = 1",
    source="ours",
    references=("Ionides, Truncated importance sampling, J. Comput. Graph. Stat. 17 (2008) 295-311",),
    claims=(
        Claim("root", "equal", "cap", "root", "the cap is 1 + (n-1) B(cap), B by quadrature"),
        Claim("optimum", "at_most", "least", "others", "no cap of a grid, no weight and no neighbor has less error"),
        Claim("numeric", "equal", "cap", "numeric", "a bounded minimizer finds the same six digits", tolerance=1e-6),
        Claim("falls", "at_most", "fall_after", "fall_before", "the error falls up to the cap"),
        Claim("rises", "at_most", "rise_before", "rise_after", "and rises from it to the largest weight"),
        Claim("counted", "equal", "counted", "by_law", "bias^2 + variance/n is the error over all joint outcomes of two draws"),
        Claim("below", "at_most", "below", "supremum", "the cap does not exceed ess sup W"),
        Claim("acts", "equal", "acts", "yes", "it acts with positive probability"),
        Claim("on_policy_unbiased", "equal", "bias", "none", "constant weights are left as they are"),
        Claim("on_a_batch", "equal", "applied", "capped_at_root",
              "`spire` with its automatic cap: min(W_(k), c_k), c_k that root under the batch's own W_(k)"),
        Claim("second_root", "equal", "second_cap", "second_root", "second moment for variance: c = n B(c)"),
        Claim("second_optimum", "at_most", "second_least", "second_others", "which minimizes bias^2 + E min^2 / n"),
        Claim("second_on_policy", "equal", "on_policy_cap", "share", "it is n/(n+1) at W = 1"),
        Claim("second_biases", "differs", "second_bias", "no_bias", "and so biases on-policy data", margin=0.1),
        Claim("second_below_one", "at_most", "near_cap", "one", "also where weights are nearly constant"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Given the law of the weights, the best cap is one division; minimizing the second moment truncates on-policy data.",
    mutants=(
        Mutant(name="weight_is_constant", kind="hypothesis", breaks=("acts",), instances=only_constant,
               measure=partial(measure, everywhere=True), why="at W = 1 the root cuts nothing off, and any cap above is as good"),
        Mutant(name="signal_is_not_constant", kind="hypothesis", breaks=("optimum", "numeric", "falls"), on=("three_atoms",),
               measure=partial(measure, signal=(1.0, -1.0, 0.2)),
               why="the signal is small where the weight is large: another cap is best (O2)"),
        Mutant(name="n_for_n_minus_one", kind="bug", on=("single_draw",),
               breaks=("root", "optimum", "numeric", "falls", "on_a_batch"),
               plant=lambda: planted(cap_exact, "finite_cap", one_more_draw),
               why="1 + n B(c): too large a cap, by about 1/n of its distance from 1; needs few draws"),
        Mutant(name="second_moment_for_variance", kind="bug", on=("two_point", "three_atoms", "on_policy"),
               breaks=("root", "optimum", "numeric", "rises", "on_a_batch", "on_policy_unbiased"),
               plant=lambda: planted(cap_exact, "finite_cap", second_moment_instead),
               why="the cap of the variant, too small everywhere and below 1 on policy"),
        Mutant(name="excess_not_integrated", kind="bug", on=("three_atoms",),
               breaks=("root", "optimum", "numeric", "falls", "on_a_batch", "second_root", "second_optimum"),
               plant=lambda: planted(cap_exact, "excess_at_atoms", reversed_weights),
               why="B at the weights is not what lies above them"),
        Mutant(name="one_cap_from_whole_response", kind="bug", breaks=("on_a_batch",),
               on=("rare_and_large", "three_atoms", "transformer_dense", "transformer_experts"),
               plant=lambda: planted(segment, "segment_end_log_ratios", whole_response),
               why="every segment capped as the whole response calls for; needs segments of unequal spread"),
    ),
)  # fmt: skip
