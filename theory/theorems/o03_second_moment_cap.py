"""O3: the cap of least certified error when all that is known of the weights is their second moment."""

from __future__ import annotations

import random
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
from scipy.optimize import minimize_scalar

from testbed.weighting import cap_bounds, cap_law
from testbed.weighting.cap_bounds import d2_bound
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from theory.cap_cases import (
    BIAS,
    SECOND,
    VARIANCE,
    C,
    CapCase,
    N,
    Numbers,
    above,
    below,
    mean,
    random_law,
    real_weights,
)
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

STEPS = (-2.0, -0.3, -0.02, 0.02, 0.3, 2.0)  # of log c away from the optimum
X = sp.Symbol("x", real=True)


def instances() -> list[CapCase]:
    """Continuous, two-point and three-point laws, signals of both signs, a recorded law, and both ways to equality."""
    three = Finite([0.2, 1.0, 5.0], [0.5, 0.4, 0.1])
    return [
        CapCase(name="three_atoms_signed", law=three, n=16, signal=(0.5, -1.0, 1.0)),
        CapCase(name="three_atoms", law=three, n=200),
        CapCase(name="log_normal", law=LogNormal(1.2), n=64),
        CapCase(name="log_normal_single_draw", law=LogNormal(0.5), n=1),
        CapCase(name="uniform_ratio", law=UniformRatio(0.8), n=16),
        CapCase(name="rare_and_large", law=TwoPoint(0.9, 30.0), n=16),
        CapCase(name="on_policy", law=TwoPoint(1.0, 1.0), n=16),
        CapCase(name="half_the_weight", law=TwoPoint(0.0, 4.0), n=16, caps=(2.0,)),
        CapCase(name="the_weight", law=TwoPoint(0.0, 4.0), n=16, caps=(4.0,)),
        CapCase(name="recorded", law=real_weights(6, "v0_bf16"), n=64),
    ]


def measure(instance: CapCase, copies: bool = False) -> Quantities:
    """Errors and bounds at several caps, the bound around the advised cap, and what a numerical minimizer finds.

    Mutants draw one response n times over (`copies`).
    """
    law, n, d2 = instance.law, instance.n, instance.law.second_moment

    cap = optimal_cap(law, None, n, method="d2")
    least = d2_bound(d2, n, cap)
    search = minimize_scalar(
        lambda x: d2_bound(d2, n, float(np.exp(x))), bounds=(-6.0, 8.0), method="bounded", options={"xatol": 1e-9}
    )
    values: dict[str, Any] = {
        "mse": instance.errors(1 if copies else None), "bound": instance.of(lambda c: d2_bound(d2, n, c)),
        "excess": instance.of(law.excess), "excess_bound": instance.of(lambda c: d2 / (4 * c)),
        "second": instance.of(law.capped_second_moment), "cap_itself": instance.caps,
        "cap": cap, "least": least, "value": 1.5 * cap / n,
        "around": [d2_bound(d2, n, cap * float(np.exp(x))) / least for x in STEPS],
        "profile": [(np.exp(-2 * x) + 2 * np.exp(x)) / 3 for x in STEPS],
        "searched": search.fun, "searched_cap": float(np.exp(search.x)),
        "error_at_cap": instance.error(cap, 1 if copies else None).mse,
    }  # fmt: skip
    if instance.name == "half_the_weight":
        values |= {"tight_excess": values["excess"], "tight_excess_bound": values["excess_bound"]}
    if instance.name == "the_weight":
        values |= {"tight_second": values["second"], "tight_cap": instance.caps}
    return values


def _bound(d: sp.Expr) -> sp.Expr:
    return d**2 / (16 * C**2) + C / N


def _pointwise() -> list[list[Step]]:
    w = sp.Symbol("w1", nonnegative=True)
    return [
        [
            Step("slack", w**2 / (4 * C) - (w - C), "what the parabola leaves above the line", tex=r"\frac{w^2}{4c} - (w - c)"),
            Step("square", (w - 2 * C) ** 2 / (4 * C), "complete the square", tex=r"\frac{(w - 2c)^2}{4c}"),
            Step("sign", 0, "squares are not negative: equality at w = 2c only", ">=", tex="0"),
        ],
        [
            Step("excess", above(w, C), "what a cap cuts off", tex=r"(w - c)_+"),
            Step("parabola", w**2 / (4 * C), "the line above, where w > c; a square, where it is 0", "<=", tex=r"\frac{w^2}{4c}"),
        ],
        [
            Step("capped", below(w, C) ** 2, "square of a capped weight", tex=r"\min(w, c)^2"),
            Step("product", C * w, "one factor is at most c, the other at most w", "<=", tex=r"c\,w"),
        ],
    ]  # fmt: skip


def _optimum(d: sp.Expr) -> list[list[Step]]:
    best = sp.cbrt(N * d**2 / 8)
    return [
        [
            Step("bound", _bound(d), "the bound at any cap", quantity="bound", tex=r"\frac{d_2^2}{16c^2} + \frac{c}{n}"),
            Step("split", d**2 / (16 * C**2) + C / (2 * N) + C / (2 * N), "three terms whose product is free of c",
                 tex=r"\frac{d_2^2}{16c^2} + \frac{c}{2n} + \frac{c}{2n}"),
            Step("means", 3 * sp.cbrt(d**2 / (64 * N**2)), "arithmetic mean >= geometric mean, equality iff the terms are equal",
                 ">=", quantity="least", tex=r"3 \sqrt[3]{d_2^2 / (64 n^2)}"),
            Step("value", 3 * best / (2 * N), "at c = (n d2^2/8)^(1/3) each term is c/(2n)", quantity="value",
                 tex=r"\frac{3c}{2n},\quad c = \sqrt[3]{n d_2^2/8}"),
        ],
        [
            Step("slope", sp.diff(_bound(d), C).subs(C, best), "derivative of the bound, at that cap",
                 tex=r"-\frac{d_2^2}{8c^3} + \frac1n"),
            Step("zero", 0, "c^3 = n d2^2/8", tex="0"),
        ],
        [
            Step("around", _bound(d).subs(C, best * sp.exp(X)) / _bound(d).subs(C, best), "a cap e^x times as large",
                 tex=r"\frac{\mathrm{bound}(c\,e^x)}{\mathrm{bound}(c)}"),
            Step("profile", (sp.exp(-2 * X) + 2 * sp.exp(X)) / 3, "one term in three is the bias: the same for every law and n",
                 quantity="around", tex=r"\tfrac13 e^{-2x} + \tfrac23 e^x"),
        ],
        [Step("cap", best, "the minimizer", quantity="cap", tex=r"\sqrt[3]{n d_2^2/8}")],
    ]  # fmt: skip


@lru_cache(maxsize=2)
def _derivation(listed: bool) -> Derivation:
    d = mean(lambda w, f: w**2) if listed else SECOND
    if listed:
        stated = [
            Step("definition", mean(lambda w, f: above(w, C) * f) ** 2
                 + (mean(lambda w, f: below(w, C) ** 2 * f**2) - mean(lambda w, f: below(w, C) * f) ** 2) / N,
                 "bias^2 + variance/n of the mean of n independent min(W, c) f", quantity="mse",
                 tex=r"E[(W-c)_+ f]^2 + \frac1n \mathrm{Var}(\min(W,c) f)"),
            Step("signal", mean(lambda w, f: above(w, C)) ** 2 + mean(lambda w, f: below(w, C) ** 2) / N,
                 "|f| <= 1; a variance is at most the second moment", "<=", tex=r"B(c)^2 + \frac1n E\min(W,c)^2"),
            Step("pointwise", mean(lambda w, f: w**2 / (4 * C)) ** 2 + mean(lambda w, f: C * w) / N,
                 "both pointwise inequalities", "<=", tex=r"E\Big[\frac{W^2}{4c}\Big]^2 + \frac1n E[c W]"),
        ]  # fmt: skip
    else:
        stated = [
            Step("definition", BIAS**2 + VARIANCE / N, "f = 1: bias^2 + variance/n, both by quadrature", quantity="mse",
                 tex=r"B(c)^2 + \frac1n \mathrm{Var}(\min(W,c))"),
        ]  # fmt: skip
    stated.append(
        Step("moments", _bound(d), "E W^2 = d2, E W = 1", "=" if listed else "<=", quantity="bound",
             tex=r"\frac{d_2^2}{16c^2} + \frac{c}{n}")
    )  # fmt: skip

    def point(rng: random.Random) -> Numbers:
        values = random_law(rng)
        second = sp.Rational(rng.randint(9, 90), 8)
        share = sp.Rational(rng.randint(0, 8), 8)
        bias, variance = share * second / (4 * values[C]), sp.Rational(rng.randint(0, 8), 8) * values[C]
        return {**values, SECOND: second, BIAS: bias, VARIANCE: variance, X: sp.Rational(rng.randint(-8, 8), 4)}

    def bind(instance: CapCase) -> Numbers:
        return {**instance.numbers(), X: np.array(STEPS)}

    return Derivation([*_pointwise(), stated, *_optimum(d)], point, bind)


def loud_signals() -> list[CapCase]:
    """Signals that leave [-1, 1]."""
    return [CapCase(name="loud_signal", law=Finite([0.2, 1.0, 5.0], [0.5, 0.4, 0.1]), n=16, signal=(3.0, -4.0, 5.0))]


def dropped_instead(right: Any) -> Any:
    """Bug: a weight above the cap counts as 0."""

    def wrong(law: Any, cap: float, n: float) -> Any:
        kept = law.values * (law.values <= cap)
        f = np.ones((len(kept), 1)) if law.signal is None else law.signal
        terms = kept[:, None] * f
        average = law.probs @ terms
        bias = float((average - (law.probs * law.values) @ f)[0])
        variance = float(law.probs @ np.square(terms - average).sum(1))
        return cap_law.CappedError(bias, variance, bias**2 + variance / n)

    return wrong


CERTIFICATES = ("bound", "certificate")
THEOREM = Theorem(
    id="O3",
    kind="optimum",
    title="the cap that a second moment certifies: (n d2^2/8)^(1/3), with error at most 1.5 c/n",
    hypotheses=(
        "W >= 0 with mean 1 and d2 = E W^2 < inf; |f| <= 1, of either sign",
        "n independent draws; the estimator is the mean of min(W, c) f",
    ),
    statement="E(mean - E[W f])^2 <= d2^2/(16 c^2) + c/n for every cap c > 0, as (w-c)+ <= w^2/(4c) and min(w,c)^2 <= c w; the "
    "bound is least at c = (n d2^2/8)^(1/3), where it is 1.5 c/n; a cap e^x times that has (e^{-2x} + 2e^x)/3 times the bound",
    source="ours; a reading of SPIRE's 'closed-form MSE-optimal clip'",
    reading=True,
    references=("Ionides 2008, J. Comput. Graph. Stat. 17:295 (truncated importance sampling)",),
    claims=(
        Claim("bound", "at_most", "mse", "bound", "error <= d2^2/(16c^2) + c/n at every cap"),
        Claim("certificate", "at_most", "error_at_cap", "least", "in particular at the advised cap"),
        Claim("bias_part", "at_most", "excess", "excess_bound", "B(c) <= d2/(4c)"),
        Claim("variance_part", "at_most", "second", "cap_itself", "E min(W, c)^2 <= c"),
        Claim("tight_bias_part", "equal", "tight_excess", "tight_excess_bound", "equality at W in {0, 2c}"),
        Claim("tight_variance_part", "equal", "tight_second", "tight_cap", "equality at W in {0, c}"),
        Claim("value", "equal", "least", "value", "the least bound is 1.5 c/n"),
        Claim("profile", "equal", "around", "profile", "around its minimizer the bound has one shape for every law and n"),
        Claim("searched", "equal", "searched", "least", "a bounded numerical minimizer finds the same least value"),
        Claim("searched_cap", "equal", "searched_cap", "cap", "and the same cap, to seven digits", tolerance=1e-7),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.listed),
    outcome="With d2 alone known, cap at (n d2^2/8)^(1/3): twice or half of it costs a third or two thirds of the certificate.",
    mutants=(
        Mutant(name="signal_exceeds_one", kind="hypothesis", breaks=CERTIFICATES, instances=loud_signals,
               why="|f| <= 1 dropped: error grows with max f^2, the bound does not"),
        Mutant(name="one_response_copied_n_times", kind="hypothesis", breaks=CERTIFICATES, measure=partial(measure, copies=True),
               on=("log_normal", "three_atoms"), why="without independence the variance is not divided by n; needs n > 1"),
        Mutant(name="d2_not_squared", kind="bug", breaks=("value", "profile", "searched", "searched_cap"),
               plant=lambda: planted(cap_bounds, "d2_cap", lambda right: lambda d2, n: (n * d2 / 8) ** (1 / 3)),
               on=("log_normal", "rare_and_large"), why="cube root of n d2/8: a cap off the minimum wherever d2 != 1"),
        Mutant(name="chi2_for_d2_in_the_bound", kind="bug", on=("on_policy", "uniform_ratio"),
               breaks=("bound", "value", "profile", "searched", "searched_cap"),
               plant=lambda: planted(cap_bounds, "d2_bound", lambda right: lambda d2, n, c: right(d2 - 1, n, c)),
               why="d2 - 1 for d2: near on-policy a cap below 1 is certified to cost nothing"),
        Mutant(name="dropped_instead_of_capped", kind="bug", breaks=CERTIFICATES, on=("half_the_weight",),
               plant=lambda: planted(cap_law, "law_error", dropped_instead),
               why="a weight above the cap counts as 0: all of it is lost, not the excess; needs all the mass above the cap"),
    ),
)  # fmt: skip
