"""S14: what a cap does to a mean-one weight, in closed form for four families, against quadrature."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from testbed.weighting import weight_families
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from theory.capped_weights import Case, derive
from theory.planting import planted
from theory.quadrature import layer_cake_integrals, log_normal_integrals, uniform_integrals
from theory.real_laws import real_law
from theory.response_weights import response_weight
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import standard_worlds


def measure(case: Case) -> Quantities:
    """Library's closed forms against integrals of the law."""
    law, cap = case.law, case.cap
    mean, excess, second, tail = case.integrals()
    return {
        "capped_mean": law.capped_mean(cap), "excess": law.excess(cap), "capped_second": law.capped_second_moment(cap),
        "tail": law.tail(cap), "complement": 1.0 - law.capped_mean(cap),
        "mean_integral": mean, "excess_integral": excess, "second_integral": second, "tail_integral": tail,
        **({"relative": law.excess(cap) / excess, "unit": 1.0} if excess > 0 else {}),
    }  # fmt: skip


def named(family: str, *numbers: float) -> str:
    """Name a case; the point of a decimal fraction is written p."""
    return "_".join([family, *(f"{x:g}".replace(".", "p") for x in numbers)])


def finite_case(name: str, values: Any, probs: Any, cap: float) -> Case:
    """Build a case of the finite family."""
    w, p = np.asarray(values, dtype=np.float64), np.asarray(probs, dtype=np.float64)
    region = 0 if (w > cap).all() else 2 if (w > cap).any() else 4
    law = Finite(w.tolist(), p.tolist())
    return Case(
        name=name, law=law, cap=cap, region=region, atoms=(w, p), integrals=partial(layer_cake_integrals, w, p, cap)
    )


def log_normals() -> list[Case]:
    """From nearly constant to heavy-tailed, caps from below the median to far in the tail."""
    pairs = [(s, c) for s in (0.3, 1.2, 2.5) for c in (0.2, 1.0, 3.0, 40.0)]
    return [
        Case(name=named("log_normal", s, c), law=LogNormal(s), cap=c, integrals=partial(log_normal_integrals, s, c))
        for s, c in pairs
    ]


def uniforms() -> list[Case]:
    """Caps below, inside and above the support; the widest law has nothing below."""
    places = [(h, r, c) for h in (0.6, 1.0) for r, c in enumerate((0.3, 1.1, 2.5)) if h < 1 or r > 0]
    return [
        Case(
            name=named("uniform", h, c),
            law=UniformRatio(h),
            cap=c,
            region=r,
            integrals=partial(uniform_integrals, h, c),
        )
        for h, r, c in places
    ]


def two_points() -> list[Case]:
    """Caps below, between and above the two values; low = 0 has nothing below."""
    cases = []
    for low, high in ((0.25, 4.0), (0.0, 2.0), (0.96, 41.0)):
        atoms = ([low, high], [(high - 1) / (high - low), (1 - low) / (high - low)])
        cases += [
            Case(name=named("two_point", high, c), law=TwoPoint(low, high), cap=c, region=r,
                 integrals=partial(layer_cake_integrals, *atoms, c))
            for r, c in enumerate((0.2, 1.3, 50.0)) if low > 0 or r > 0
        ]  # fmt: skip
    return cases


def finites() -> list[Case]:
    """Weights of whole responses of tabular worlds, and of the next tokens of a language model."""
    kept = {"two_segments", "end_token", "exogenous_boundary", "on_policy", "deterministic_target"}
    laws = {
        w.name: (response_weight(w.batch), w.law.probs, (0.05, 1.0, 2.0)) for w in standard_worlds() if w.name in kept
    }
    for w in (real_law(6, "v0_bf16"), real_law(2, "v1_int8_dynamic")):
        target, behavior = w.target.table[0], w.behaviors[0].table[0]
        laws[w.name] = ((target - behavior).exp(), behavior.exp(), (1.0, 2.0, 8.0))
    return [finite_case(named(name, c), w, p, c) for name, (w, p, caps) in laws.items() for c in caps]


def instances() -> list[Case]:
    """All families."""
    return [*log_normals(), *uniforms(), *two_points(), *finites()]


def median_one(case: Case) -> Quantities:
    """Mutated reading: W = exp(sigma Z), whose median is 1 and whose mean is not."""
    assert isinstance(case.law, LogNormal)
    size = float(np.exp(case.law.sigma**2 / 2))  # W = size * (weight of mean one)
    mean, excess, second, tail = log_normal_integrals(case.law.sigma, case.cap / size)
    wrong = {"mean_integral": size * mean, "excess_integral": size * excess, "second_integral": size**2 * second}
    return {k: v for k, v in measure(case).items() if k != "relative"} | wrong | {"tail_integral": tail}


def one_argument(right: Any) -> Any:
    """Bug: the same normal probability multiplies 1 and the cap."""
    return lambda self, cap: (1.0 - cap) * float(weight_families.ndtr(self.sigma / 2 - self._score(cap)))


WORLDS = ("two_segments_1", "end_token_2", "smollm2_06_v0_bf16_1")
BULK = ("log_normal_1p2_1", "log_normal_1p2_3", "log_normal_2p5_3")
THEOREM = Theorem(
    id="S14",
    kind="identity",
    title="closed forms of a capped weight's mean, excess and second moment in four families",
    hypotheses=(
        "W >= 0 has mean 1: the behavior covers the target",
        "W is log-normal, two-point, uniform on [1 - h, 1 + h], or of finite support",
        "c > 0",
    ),
    statement="E min(W,c) = 1 - B(c), B(c) = E(W-c)+ and E min(W,c)^2 have the closed forms the derivation ends with",
    source="literature (partial moments); log-normal: Johnson, Kotz and Balakrishnan 1994, section 14.3",
    references=("Ionides, Truncated importance sampling, J. Comput. Graph. Stat. 17 (2008) 295-311",),
    claims=(
        Claim("capped_mean", "equal", "capped_mean", "mean_integral", "E min(W,c) is the integral"),
        Claim("excess", "equal", "excess", "excess_integral", "B(c) is the integral"),
        Claim("capped_second", "equal", "capped_second", "second_integral", "E min(W,c)^2 is the integral"),
        Claim("tail", "equal", "tail", "tail_integral", "P(W > c), the slope of all three, is the integral"),
        Claim("complement", "equal", "excess", "complement", "B(c) = 1 - E min(W,c), computed apart"),
        Claim("digits", "equal", "relative", "unit", "B(c) keeps its digits where it is 1e-30", tolerance=1e-9),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Bias and second moment of a capped weight follow from its law and the cap alone, to the last digits.",
    mutants=(
        Mutant(name="mean_is_not_one", kind="hypothesis", measure=median_one, on=BULK, instances=log_normals,
               breaks=("capped_mean", "excess", "capped_second", "tail"),
               why="exp(sigma Z) has mean e^{sigma^2/2}: what a behavior that misses the target, or a wrong scale, gives"),
        Mutant(name="one_normal_probability_for_two", kind="bug", breaks=("excess", "complement", "digits"),
               instances=log_normals, on=BULK[1:],
               plant=lambda: planted(LogNormal, "_excess", one_argument),
               why="P(W > c) and E[W; W > c] are different probabilities; needs sigma > 0"),
        Mutant(name="square_of_the_mean", kind="bug", breaks=("capped_second",), instances=log_normals, on=BULK,
               plant=lambda: planted(LogNormal, "_capped_second_moment", lambda _: lambda self, c: self.capped_mean(c) ** 2),
               why="(E min)^2 in place of E min^2; needs a weight that varies under the cap"),
        Mutant(name="mask_in_place_of_cap", kind="bug", breaks=("capped_mean", "complement"), instances=finites, on=WORLDS,
               plant=lambda: planted(Finite, "_capped_mean", lambda _: lambda self, c: self._mean(self._w * (self._w <= c))),
               why="drops what exceeds the cap instead of keeping c of it; needs an atom above the cap"),
        Mutant(name="low_value_forgotten", kind="bug", instances=two_points, on=("two_point_4_1p3", "two_point_41_1p3"),
               breaks=("capped_mean", "excess", "capped_second", "tail", "complement", "digits"),
               plant=lambda: planted(TwoPoint, "probability", lambda right: property(lambda self: 1.0 / self.high)),
               why="p = 1/high makes the mean 1 only if the other value is 0; needs low > 0"),
        Mutant(name="whole_width", kind="bug", breaks=("tail", "capped_second"),
               instances=uniforms, on=("uniform_0p6_1p1", "uniform_1_1p1"),
               plant=lambda: planted(UniformRatio, "_tail", lambda right: lambda self, c: right(self, c) / 2),
               why="density 1/(4h) in place of 1/(2h); needs a cap inside the support"),
    ),
)  # fmt: skip
