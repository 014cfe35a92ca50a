"""O5: the exact cap follows the number of draws and the convex order of the weights, not their second moment."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp

from testbed.policies.schedule import cuts
from testbed.weighting import cap_exact
from testbed.weighting.cap_bounds import chi2_cap
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.registry import RULES
from testbed.weighting.segment_ends import segment_end_log_ratios
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from testbed.weighting.weight_family import WeightFamily
from theory.cap_cases import C as CAP
from theory.cap_cases import CapCase, W, above, mean, random_law, real_weights
from theory.cap_cases import P as PROBS
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import world

DRAWS = (1, 2, 3, 8, 20, 64, 300, 5000)
LEVELS = tuple(np.linspace(0.0, 6.0, 61))
LEVEL = 1.4  # a cap between the weights of the split law
A, T, N = sp.Symbol("A", positive=True), sp.Symbol("T", positive=True), sp.Symbol("n", positive=True)
CLOSED = (1 + (N - 1) * A) / (1 + (N - 1) * T)  # root of c = 1 + (n-1)(A - cT), A and T the sums over W > c
COMMON = TwoPoint(0.0, 2.0)
RARE = TwoPoint(0.959 / 0.999, 41.0)  # 41 with probability .001


@dataclass(frozen=True)
class Pair:
    """Two laws of mean one and a number of draws; `ordered`: the second is larger in the convex order."""

    name: str
    first: WeightFamily
    second: WeightFamily
    n: int = 8
    ordered: bool = True

    @property
    def fused(self) -> bool:
        """Whether the first law is the second with its first two atoms replaced by their mean."""
        return self.name == "atom_split"


def sums_above(law: WeightFamily, cap: float) -> tuple[float, float]:
    """E[W; W > c] and P(W > c), by quadrature."""
    _, excess, _, tail = CapCase(name="here", law=law, n=1, caps=(cap,)).integrals()[:, 0]
    return excess + cap * tail, tail


def measure(instance: Pair, constant: bool = False) -> Quantities:
    """Caps of both laws over the numbers of draws, what they cut off, how fast the cap grows.

    Mutants keep one `constant` cap.
    """

    def cap(law: WeightFamily, n: float) -> float:
        return float(RULES["seq_tis"].parameters["cap"]) if constant else float(optimal_cap(law, None, n))

    first, second = instance.first, instance.second
    lower, upper = (np.array([cap(law, n) for n in DRAWS]) for law in (first, second))
    at = cap(second, instance.n)
    found: dict[str, Any] = {
        "fewer": upper[:-1], "more": upper[1:], "single": [lower[0], upper[0]], "one": 1.0, "cap": at,
        "rate": second.excess(at) / (1 + (instance.n - 1) * second.tail(at)), "zero": 0.0,
    }  # fmt: skip
    if instance.ordered:
        found |= {"cap_narrow": lower, "cap_wide": upper}
        found |= {"excess_narrow": [first.excess(c) for c in LEVELS], "excess_wide": [second.excess(c) for c in LEVELS]}
    if instance.fused:
        found |= {"excess_fused": first.excess(LEVEL), "excess_split": second.excess(LEVEL)}
    if instance.name == "log_normals":
        found |= {"few_draws": upper[3], "many_draws": upper[-1]}
    if instance.name == "catalogue":
        common = cap(first, instance.n)
        found |= {
            "rare_cap": at, "common_cap": common, "rare_d2": second.second_moment, "common_d2": first.second_moment,
            "rare_rounded": round(at, 3), "rare_printed": 1.278, "common_rounded": round(common, 3), "common_printed": 1.778,
        }  # fmt: skip
    return found


def products() -> tuple[Finite, Finite]:
    """Weights through the first and through both segments of a world: a martingale, hence convexly ordered."""
    found = world("segments", 2, 3, cuts((1,)))
    logs = segment_end_log_ratios(found.batch)
    first, second = (Finite(x.exp(), found.law.probs) for x in logs.unbind(1))
    return first, second


def instances() -> list[Pair]:
    """Families that grow, an atom that is split, segments of a response, recorded weights, the catalogue's pair."""
    return [
        Pair("log_normals", LogNormal(0.5), LogNormal(1.2), 64),
        Pair("uniforms", UniformRatio(0.3), UniformRatio(0.9), 20),
        Pair("two_points", TwoPoint(0.5, 2.0), TwoPoint(0.0, 4.0), 12),
        Pair("atom_split", Finite([0.75, 2.0], [0.8, 0.2]), Finite([0.25, 1.25, 2.0], [0.4, 0.4, 0.2]), 9),
        Pair("segments", *products(), 30),
        Pair("recorded", Finite([1.0], [1.0]), real_weights(6, "v0_bf16"), 64),
        Pair("catalogue", COMMON, RARE, 8, ordered=False),
    ]


def _growth() -> list[list[Step]]:
    return [
        [
            Step("root", CLOSED, "linear equation between two weights", quantity="cap",
                 tex=r"c^* = \frac{1 + (n-1)\,E[W; W > c^*]}{1 + (n-1)\,P(W > c^*)}"),
        ],
        [
            Step("slope_in_n", sp.diff(CLOSED, N), "the same weights stay above the cap while n moves a little",
                 tex=r"\frac{dc^*}{dn}"),
            Step("excess", (A - CLOSED * T) / (1 + (N - 1) * T), "collect: the numerator is B(c*)", quantity="rate",
                 tex=r"\frac{B(c^*)}{1 + (n-1)\,P(W > c^*)}"),
            Step("sign", sp.Integer(0), "B >= 0", ">=", tex="0"),
        ],
        [
            Step("one_draw", CLOSED.xreplace({N: sp.Integer(1)}), "n = 1", tex=r"c^*\big|_{n=1}"),
            Step("one", sp.Integer(1), "whatever the law", quantity="single", tex="1"),
        ],
    ]  # fmt: skip


def _split() -> list[list[Step]]:
    both = PROBS[0] + PROBS[1]
    middle = (PROBS[0] * W[0] + PROBS[1] * W[1]) / both
    fused = both * above(middle, CAP) + PROBS[2] * above(W[2], CAP)
    split = mean(lambda w, f: above(w, CAP))
    return [
        [
            Step("fused", fused, "two weights replaced by their mean", quantity="excess_fused", tex=r"B(c)"),
            Step("split", split, "x -> (x - c)+ is convex: every mean-preserving split raises it", ">=", "excess_split",
                 tex=r"B'(c) \ge B(c)"),
        ],
        [
            Step("gap", CAP - 1 - (N - 1) * fused, "the root of this is the cap", tex=r"c - 1 - (n-1)B(c)"),
            Step("lower_gap", CAP - 1 - (N - 1) * split, "it rises in c and is lower for the wider law: its root is larger", "<=",
                 tex=r"c - 1 - (n-1)B'(c)"),
        ],
    ]  # fmt: skip


def _pair() -> list[list[Step]]:
    def at(a: sp.Rational, t: sp.Rational) -> sp.Expr:
        return CLOSED.xreplace({A: a, T: t, N: sp.Integer(8)})

    thousandth = sp.Rational(1, 1000)
    return [
        [
            Step("common", at(sp.Integer(1), sp.Rational(1, 2)), "W in {0, 2}: the mean is all at 2", tex=r"\frac{1+7}{1+7/2}"),
            Step("value", sp.Rational(16, 9), "1.778", quantity="common_cap", tex=r"\frac{16}{9}"),
        ],
        [
            Step("rare", at(41 * thousandth, thousandth), "41 with probability 1/1000: .041 of the mean lies there",
                 tex=r"\frac{1 + 7 \cdot .041}{1 + 7 \cdot .001}"),
            Step("value", sp.Rational(1287, 1007), "1.278", quantity="rare_cap", tex=r"\frac{1287}{1007}"),
        ],
    ]  # fmt: skip


@lru_cache(maxsize=3)
def _derivation(name: str) -> Derivation:
    extra = _split() if name == "atom_split" else _pair() if name == "catalogue" else []

    def point(rng: random.Random) -> dict[sp.Symbol, Any]:
        t = sp.Rational(rng.randint(1, 9), 10)
        values = {k: v for k, v in random_law(rng).items() if k.name != "n"}
        return values | {T: t, A: t + sp.Rational(rng.randint(0, 9), 7), N: sp.Integer(rng.randint(1, 40))}

    return Derivation([*_growth(), *extra], point, _bind)


def _bind(instance: Pair) -> dict[sp.Symbol, Any]:
    above_cap = sums_above(instance.second, float(optimal_cap(instance.second, None, instance.n)))
    values = dict(zip((A, T), above_cap, strict=True)) | {N: float(instance.n)}
    if instance.name == "atom_split":
        case = CapCase(name="split", law=instance.second, n=instance.n, caps=(LEVEL,))
        values |= {k: v for k, v in case.numbers().items() if k.name != "n"}
    return values


def chi2_instead(right: Any) -> Any:
    """Bug: a cap from the second moment, as if it said all about the law."""
    return lambda law, n: chi2_cap(law.second_moment - 1.0, n)


THEOREM = Theorem(
    id="O5",
    kind="identity",
    title="the exact cap rises with the number of draws and with the convex order, not with chi2",
    hypotheses=(
        "both weights are >= 0 with mean 1; the signal is constant",
        "the cap is the root of c = 1 + (n-1) B(c) (O1)",
        "convex order: E phi(W) <= E phi(W') for every convex phi, equivalently B <= B' everywhere, e.g. W' = W times an "
        "independent or later ratio of mean 1",
    ),
    statement="dc*/dn = B(c*)/(1 + (n-1) P(W > c*)) >= 0; c*(W) <= c*(W') if W is below W' in the convex order; "
    "c* = 1 for n = 1. chi2 does not order it: W in {0, 2} (chi2 = 1) has 16/9 at n = 8, "
    "W = 41 with probability .001 (chi2 = 1.6) 1287/1007",
    source="ours",
    references=("Shaked and Shanthikumar, Stochastic Orders (2007), chapter 3",),
    claims=(
        Claim("draws", "at_most", "fewer", "more", "more draws, no smaller cap"),
        Claim("single", "equal", "single", "one", "one draw: cap 1, whatever the law"),
        Claim("ordered", "at_most", "excess_narrow", "excess_wide", "convex order: no cap cuts off less of the wider law"),
        Claim("convex_order", "at_most", "cap_narrow", "cap_wide", "and its cap is no smaller, for every n"),
        Claim("rate", "at_most", "zero", "rate", "the cap's slope in n is B(c*)/(1 + (n-1) P(W > c*)) >= 0"),
        Claim("common_number", "equal", "common_rounded", "common_printed", "W in {0, 2}, n = 8: 1.778"),
        Claim("rare_number", "equal", "rare_rounded", "rare_printed", "W = 41 with probability .001: 1.278"),
        Claim("larger_chi2", "at_most", "common_d2", "rare_d2", "the second has the larger second moment"),
        Claim("smaller_cap", "at_most", "rare_cap", "common_cap", "and the smaller cap"),
        Claim("not_in_chi2", "differs", "rare_cap", "common_cap", "by a quarter", margin=0.2),
        Claim("follows_draws", "differs", "few_draws", "many_draws", "the cap for 8 draws is not that for 5000", margin=0.5),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.name if instance.name in ("atom_split", "catalogue") else ""),
    outcome="More draws and more segments call for larger caps; chi2 alone cannot say how large, and a constant says nothing.",
    mutants=(
        Mutant(name="larger_chi2_for_convex_order", kind="hypothesis", breaks=("ordered", "convex_order"),
               instances=lambda: [Pair("by_chi2", COMMON, RARE)], why="a larger second moment from one rare, large weight"),
        Mutant(name="constant_cap", kind="hypothesis", breaks=("single", "follows_draws"), on=("log_normals",),
               measure=partial(measure, constant=True), why="a clip of fixed size, as in PPO, moves with nothing"),
        Mutant(name="cap_from_chi2", kind="bug", on=("catalogue",),
               breaks=("single", "common_number", "rare_number", "smaller_cap", "not_in_chi2"),
               plant=lambda: planted(cap_exact, "finite_cap", chi2_instead),
               why="the closed form of O4 orders the pair by chi2 and is not 1 for a single draw"),
        Mutant(name="n_for_n_minus_one", kind="bug", on=("catalogue",), breaks=("single", "common_number", "rare_number"),
               plant=lambda: planted(cap_exact, "finite_cap", lambda right: lambda law, n: right(law, n + 1)),
               why="the cap of one draw more; needs few draws"),
    ),
)  # fmt: skip
