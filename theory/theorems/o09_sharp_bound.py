"""O9: the largest truncation bias a weight of given chi-square can have, and the cap no exact cap exceeds."""

from __future__ import annotations

import random
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp

from testbed.weighting import cap_bounds
from testbed.weighting.cap_bounds import sharp_cap, sharp_excess
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio
from testbed.weighting.weight_family import WeightFamily
from theory.cap_cases import BIAS, SECOND, C, CapCase, N, Numbers, above, mean, random_law, real_weights
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

DRAWS = (1, 2, 4, 16, 64, 1024)
CHI2 = sp.Symbol("chi2", positive=True)


def extremal(chi2: float, cap: float) -> TwoPoint:
    """The two-point law cap +- sqrt(chi2 + (cap-1)^2): mean 1 and this chi2; it exists iff cap >= d2/2."""
    reach = sqrt(chi2 + (cap - 1) ** 2)
    return TwoPoint(max(cap - reach, 0.0), cap + reach)


def at_advised(name: str, chi2: float, n: int) -> CapCase:
    """The extremal law of the sharp cap for n draws, looked at there only."""
    cap = sharp_cap(chi2, n)
    return CapCase(name=name, law=extremal(chi2, cap), n=n, caps=(cap,))


def instances() -> list[CapCase]:
    """Continuous, finite and recorded laws; laws that attain the bound; a cap below d2/2, where another bound is sharp."""
    return [
        CapCase(name="three_atoms", law=Finite([0.2, 1.0, 5.0], [0.5, 0.4, 0.1]), n=16),
        CapCase(name="log_normal", law=LogNormal(1.2), n=64),
        CapCase(name="uniform_ratio", law=UniformRatio(0.8), n=4),
        CapCase(name="rare_and_large", law=TwoPoint(0.9, 30.0), n=16),
        CapCase(name="on_policy", law=TwoPoint(1.0, 1.0), n=16),
        at_advised("attained_16", 2.0, 16),
        at_advised("attained_1024", 2.0, 1024),
        at_advised("attained_close", 0.01, 4),
        CapCase(name="low_caps", law=TwoPoint(0.0, 8.0), n=2, caps=(0.5, 1.0, 2.0, 4.0)),
        CapCase(name="recorded", law=real_weights(2, "v1_int8_dynamic"), n=64),
    ]


def low_bound(d2: float, cap: float) -> float:
    """Largest truncation bias of a weight >= 0 at a cap up to d2/2."""
    return 1 - cap / d2


def measure(instance: CapCase, everywhere: bool = False, bad_mean: float = 1.0) -> Quantities:
    """Bias at several caps and exact caps for several n, against what chi2 alone allows.

    Mutants claim equality for caps below d2/2 too (`everywhere`), or give the weights another mean.
    """
    law, caps = instance.law, np.array(instance.caps)
    d2 = law.second_moment
    chi2 = d2 - 1
    bound = instance.of(lambda c: sharp_excess(chi2, c))
    over, under = caps > 1, caps <= d2 / 2
    values: dict[str, Any] = {
        "excess": instance.of(lambda c: bad_mean * law.excess(c / bad_mean)), "bound": bound,
        "sharp_above_one": bound[over], "chi2_above_one": chi2 / (4 * (caps[over] - 1)),
        "exact_cap": [optimal_cap(law, None, n) for n in DRAWS], "cap_bound": [sharp_cap(chi2, n) for n in DRAWS],
        "excess_low": instance.of(law.excess)[under], "bound_low": [low_bound(d2, c) for c in caps[under]],
        "low_of_both": [low_bound(d2, c) for c in caps[under]], "sharp_low": bound[under],
    }  # fmt: skip
    if instance.name.startswith("attained") or everywhere:
        values |= {"attained": values["excess"], "attained_bound": bound}
        values |= {
            "attained_cap": optimal_cap(law, None, instance.n),
            "attained_cap_bound": sharp_cap(chi2, instance.n),
        }
    if instance.name == "low_caps":
        values |= {"attained_low": values["excess_low"], "attained_bound_low": values["bound_low"]}
    return values


def _sharp(chi2: sp.Expr) -> sp.Expr:
    return (sp.sqrt(chi2 + (C - 1) ** 2) - (C - 1)) / 2


def _stated(listed: bool) -> list[list[Step]]:
    if not listed:
        return [[Step("excess", BIAS, "by quadrature", quantity="excess", tex="B(c)"),
                 Step("sharp", _sharp(SECOND - 1), "as for listed laws", "<=", quantity="bound")]]  # fmt: skip
    distance = mean(lambda w, f: sp.Abs(w - C))
    chi2 = mean(lambda w, f: w**2) - 1
    second = mean(lambda w, f: w**2)
    return [
        [
            Step("excess", mean(lambda w, f: above(w, C)), "what the cap cuts off", quantity="excess", tex=r"E(W-c)_+"),
            Step("distance", (distance - (C - 1)) / 2, "(x)+ = (|x| + x)/2, and E W = 1", tex=r"\tfrac12(E|W-c| - (c-1))"),
            Step("schwarz", (sp.sqrt(mean(lambda w, f: (w - C) ** 2)) - (C - 1)) / 2,
                 "E|x| <= sqrt(E x^2), equality iff |W - c| is constant", "<=", tex=r"\tfrac12(\sqrt{E(W-c)^2} - (c-1))"),
            Step("sharp", _sharp(chi2), "E(W-c)^2 = chi2 + (c-1)^2", quantity="bound",
                 tex=r"\tfrac12(\sqrt{\chi_2 + (c-1)^2} - (c-1))"),
        ],
        [
            Step("kept", mean(lambda w, f: (w + C - sp.Abs(w - C)) / 2), "mean of the capped weight", tex=r"E\min(W,c)"),
            Step("parabola", sp.Min(C, second / 2) * (2 * mean(lambda w, f: w) / second - mean(lambda w, f: w**2) / second**2),
                 "for t <= min(c, d2/2): min(w, c) >= t(2w/d2 - w^2/d2^2), a parabola with top t at w = d2 and slope <= 1 at 0",
                 ">=", tex=r"t\,E\Big[\frac{2W}{d_2} - \frac{W^2}{d_2^2}\Big]"),
            Step("low", sp.Min(C, second / 2) / second, "E W = 1, E W^2 = d2: hence B(c) <= 1 - c/d2 up to c = d2/2",
                 tex=r"\min(c, d_2/2)/d_2"),
        ],
    ]  # fmt: skip


def _caps(chi2: sp.Expr) -> list[list[Step]]:
    advised = 1 + (N - 1) * sp.sqrt(chi2) / (2 * sp.sqrt(N))
    a = advised - 1
    low, high = C - sp.sqrt(CHI2 + (C - 1) ** 2), C + sp.sqrt(CHI2 + (C - 1) ** 2)
    p = (1 - low) / (high - low)
    return [
        [
            Step("advised", a, "the sharp cap minus 1: the root of c = 1 + (n-1) b(c), b the bound on B; b >= B and both fall, "
                 "so the root of O1 lies below", tex=r"\bar c - 1"),
            Step("root", (N - 1) * (sp.sqrt(chi2 + a**2) - a) / 2, "square (n+1) a = (n-1) sqrt(chi2 + a^2)",
                 tex=r"(n-1)\,\tfrac12(\sqrt{\chi_2 + (\bar c-1)^2} - (\bar c-1))"),
        ],
        [
            Step("moments", [(1 - p) * low + p * high, (1 - p) * low**2 + p * high**2 - 1, p * (high - C)],
                 "mean, chi2 and B(c) of the law on c +- sqrt(chi2 + (c-1)^2)", tex=r"E W,\ E W^2 - 1,\ B(c)"),
            Step("as_required", [1, CHI2, _sharp(CHI2)], "|W - c| is constant: equality; low >= 0 iff c >= d2/2",
                 tex=r"1,\ \chi_2,\ \tfrac12(\sqrt{\chi_2 + (c-1)^2} - (c-1))"),
        ],
        [
            Step("sharp", _sharp(CHI2).subs(C, 1 + C), "the bound at 1 + a", tex=r"\tfrac12(\sqrt{\chi_2 + a^2} - a)"),
            Step("rationalized", CHI2 / (2 * (sp.sqrt(CHI2 + C**2) + C)), "multiply and divide by the sum",
                 tex=r"\frac{\chi_2}{2(\sqrt{\chi_2 + a^2} + a)}"),
            Step("looser", CHI2 / (4 * C), "the root is at least a: O4's bound is never below", "<=", tex=r"\frac{\chi_2}{4a}"),
        ],
    ]  # fmt: skip


@lru_cache(maxsize=2)
def _derivation(listed: bool) -> Derivation:
    chi2 = (mean(lambda w, f: w**2) if listed else SECOND) - 1

    def point(rng: random.Random) -> Numbers:
        values = random_law(rng)
        second = 1 + sp.Rational(rng.randint(1, 90), 8)
        bias = sp.Rational(rng.randint(0, 8), 8) * _sharp(second - 1).subs(C, values[C])
        return {**values, SECOND: second, BIAS: bias, CHI2: sp.Rational(rng.randint(1, 40), 8)}

    return Derivation([*_stated(listed), *_caps(chi2)], point, lambda instance: instance.numbers())


def of_mean(law: WeightFamily) -> list[CapCase]:
    """Build one case of a law that a mutant gives another mean."""
    return [CapCase(name="mean_above_one", law=law, n=16, caps=(2.0, 3.0))]


EXCESS = ("bound", "attained")
THEOREM = Theorem(
    id="O9",
    kind="bound",
    title="the sharp bound on truncation bias and exact cap from chi2 alone: 1 + (n-1) sqrt(chi2)/(2 sqrt n)",
    hypotheses=(
        "W has mean 1 and chi2 = E W^2 - 1 < inf; f = 1",
        "attained: c >= d2/2, so that the two-point law is a weight (W >= 0)",
        "exact cap: the root of c = 1 + (n-1) B(c) (O1), n independent draws",
    ),
    statement="B(c) <= (sqrt(chi2 + (c-1)^2) - (c-1))/2, with equality iff |W - c| is constant: W = c +- sqrt(chi2 + (c-1)^2), "
    "a weight iff c >= d2/2; hence c* <= 1 + (n-1) sqrt(chi2)/(2 sqrt n), attained by that law. For c <= d2/2 and W >= 0 "
    "the sharp bound is B(c) <= 1 - c/d2, attained by W in {0, d2}",
    source="literature: Scarf 1958; the cap is ours",
    references=(
        "Scarf 1958, in: Studies in the Mathematical Theory of Inventory and Production, 201-209",
        "Lo 1987, J. Financial Economics 19:373 (the same bound on option prices)",
    ),
    claims=(
        Claim("bound", "at_most", "excess", "bound", "B(c) <= (sqrt(chi2 + (c-1)^2) - (c-1))/2"),
        Claim("attained", "equal", "attained", "attained_bound", "equality for the two-point law around the cap"),
        Claim("cap", "at_most", "exact_cap", "cap_bound", "no exact cap exceeds the sharp cap, whatever n"),
        Claim("cap_attained", "equal", "attained_cap", "attained_cap_bound", "and the two-point law needs all of it"),
        Claim("below_the_chi2_bound", "at_most", "sharp_above_one", "chi2_above_one", "sharper than O4's chi2/(4(c-1))"),
        Claim("low", "at_most", "excess_low", "bound_low", "B(c) <= 1 - c/d2 for weights, up to c = d2/2"),
        Claim("low_attained", "equal", "attained_low", "attained_bound_low", "equality for W in {0, d2}"),
        Claim("low_is_sharper", "at_most", "low_of_both", "sharp_low", "up to d2/2 it is the smaller of the two"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.listed),
    outcome="A cap above 1 + (n-1) sqrt(chi2)/(2 sqrt n) is too large for every law of that chi2: the growth of sqrt n is the "
    "most that can be needed.",
    mutants=(
        Mutant(name="below_half_of_d2", kind="hypothesis", breaks=("attained", "cap_attained"), on=("low_caps",),
               measure=partial(measure, everywhere=True),
               why="c >= d2/2 dropped: the two-point law would need negative weights; W in {0, d2} is the worst there is"),
        Mutant(name="mean_above_one", kind="hypothesis", breaks=("bound",), instances=lambda: of_mean(extremal(2.0, 2.0)),
               measure=partial(measure, bad_mean=1.5), why="weights of mean 1.5: more is cut off than chi2 about 1 allows"),
        Mutant(name="cap_for_its_distance_from_one", kind="bug", on=("attained_16", "attained_close"),
               breaks=("bound", "attained"),
               plant=lambda: planted(cap_bounds, "sharp_excess", lambda right: lambda chi2, c: right(chi2, c + 1)),
               why="c in place of c - 1: too small by about half"),
        Mutant(name="n_for_n_minus_one", kind="bug", breaks=("cap_attained",), on=("attained_16", "attained_close"),
               plant=lambda: planted(cap_bounds, "sharp_cap", lambda right: lambda chi2, n: 1 + sqrt(chi2 * n) / 2),
               why="sqrt(n chi2)/2, the limit for large n, in place of (n-1) sqrt(chi2/n)/2: still a bound, no longer attained"),
    ),
)  # fmt: skip
