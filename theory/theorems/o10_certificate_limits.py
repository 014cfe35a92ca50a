"""O10: a certificate that knows the second moment alone stops being worth anything once there are enough draws."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp

from testbed.weighting import cap_bounds
from testbed.weighting.cap_bounds import chi2_bound, chi2_cap, d2_bound, d2_cap
from testbed.weighting.optimal_cap import capped_error, optimal_cap
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

THRESHOLD = 64 / 27
SHARES = (0.05, 0.3, 0.9, 0.999)  # of the threshold, below it
MULTIPLES = (1.001, 1.2, 4.0, 1000.0)
ABOVE = (1.0, 1.5, 8.0)  # caps as multiples of d2
BELOW = (0.95, 0.7)
D, C, N = (sp.Symbol(name, positive=True) for name in ("d", "c", "n"))


@dataclass(frozen=True)
class Knowledge:
    """All that a certificate may know: the second moment d2, and how many draws there are at the laws looked at."""

    name: str
    d2: float
    n: float = 50.0

    def law(self, signed: bool) -> tuple[list[float], list[float], list[float]]:
        """Weights {0, d2} of mean one, with the constant signal or with one of mean zero, as likely +1 as -1 beside each."""
        p = 1.0 / self.d2
        if not signed:
            return [0.0, self.d2], [1 - p, p], [1.0, 1.0]
        return [0.0, 0.0, self.d2, self.d2], [(1 - p) / 2] * 2 + [p / 2] * 2, [1.0, -1.0, 1.0, -1.0]

    def error(self, cap: float, signed: bool) -> float:
        """Library's exact error of a cap under that law."""
        w, p, f = self.law(signed)
        return capped_error(w, p, cap=cap, n=self.n, signal=f).mse


def least_d2(d2: float, n: float) -> float:
    """Least error that O3 certifies."""
    return d2_bound(d2, n, d2_cap(d2, n))


def least_chi2(chi2: float, n: float) -> float:
    """Least error that O4 certifies."""
    return chi2_bound(chi2, n, chi2_cap(chi2, n))


def measure(instance: Knowledge, caps: tuple[float, ...] = ABOVE) -> Quantities:
    """Least certified errors against no cap, on both sides of the threshold; exact errors of the extreme law for caps >= d2.

    Mutants look at smaller `caps`.
    """
    d2, chi2, n = instance.d2, instance.d2 - 1.0, instance.n

    def certified(shares: tuple[float, ...]) -> np.ndarray:
        """Least certified error over the error without a cap, for O3 then O4, at these multiples of the threshold."""
        draws = [(least, x, s * THRESHOLD * x) for least, x in ((least_d2, d2), (least_chi2, chi2)) for s in shares]
        return np.array([least(x, m) * m / x for least, x, m in draws if m >= 1.0])

    values: dict[str, Any] = {
        "at_threshold": certified((1.0,)), "few_draws": certified(SHARES), "many_draws": certified(MULTIPLES), "no_cap": 1.0,
        "ratio": least_d2(d2, n) * n / d2, "ratio_chi2": least_chi2(chi2, n) * n / chi2,
        "advised": d2_cap(d2, 8.0 * d2), "d2": d2,
        "capped": [instance.error(c * d2, True) for c in caps], "uncapped": d2 / n,
        "capped_constant": [instance.error(c * d2, False) for c in caps], "uncapped_constant": chi2 / n,
        "exact": [optimal_cap(*instance.law(signed)[:2], n, signal=instance.law(signed)[2]).mse for signed in (False, True)],
        "exact_uncapped": [chi2 / n, d2 / n],
    }  # fmt: skip
    if instance.name == "many_draws":
        values |= {"certified_far": least_d2(d2, n) * n / d2, "exact_far": values["exact"][0] * n / chi2}
    return values


def instances() -> list[Knowledge]:
    """Nearly on-policy, moderate and heavy weights; a case far beyond the threshold."""
    return [
        Knowledge("near_on_policy", 1.01),
        Knowledge("moderate", 2.5),
        Knowledge("heavy", 60.0),
        Knowledge("many_draws", 4.0, 1000.0),
    ]


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    bound = D**2 / (16 * C**2) + C / N
    best = sp.cbrt(N * D**2 / 8)
    chi2 = D - 1
    best_chi2, bound_chi2 = sp.cbrt(N * chi2**2 / 8), chi2**2 / (16 * C**2) + C / N
    chains = [
        [
            Step("slope", sp.diff(bound, C).xreplace({C: best}), "slope of O3's bound at its cap (n d2^2/8)^(1/3)",
                 tex=r"\partial_c\Big[\frac{d_2^2}{16c^2} + \frac cn\Big]"),
            Step("stationary", sp.Integer(0), "it vanishes, and the bound is convex", tex="0"),
        ],
        [
            Step("least", bound.xreplace({C: best}) * N / D, "the bound there, relative to d2/n without a cap", quantity="ratio",
                 tex=r"\min_c\Big[\frac{d_2^2}{16c^2} + \frac cn\Big]\Big/\frac{d_2}{n}"),
            Step("half_more", sp.Rational(3, 2) * best / D, "d2^2/(16c^2) = c/(2n) at the cap", tex=r"\tfrac32\,c^*/d_2"),
            Step("cube", sp.cbrt(27 * N / (64 * D)), "one cube root: below 1 iff n < (64/27) d2",
                 tex=r"\Big(\frac{27\,n}{64\,d_2}\Big)^{1/3}"),
        ],
        [
            Step("least", bound_chi2.xreplace({C: best_chi2}) * N / chi2, "O4's bound in c - 1, relative to chi2/n",
                 quantity="ratio_chi2", tex=r"\min_c\Big[\frac{\chi_2^2}{16(c-1)^2} + \frac{c-1}{n}\Big]\Big/\frac{\chi_2}{n}"),
            Step("cube", sp.cbrt(27 * N / (64 * chi2)), "the same function of chi2: below 1 iff n < (64/27) chi2",
                 tex=r"\Big(\frac{27\,n}{64\,\chi_2}\Big)^{1/3}"),
        ],
        [
            Step("extreme", (1 / D) * D**2 / N, "W in {0, d2}, sign of f independent and even: E(Wf)^2/n, and E Wf = 0",
                 quantity="uncapped", tex=r"\frac{1}{n}\,\frac{1}{d_2}\,d_2^2"),
            Step("uncapped", D / N, "a cap c >= d2 never acts on it: no certificate for c >= d2 can lie below d2/n",
                 tex=r"\frac{d_2}{n}"),
        ],
        [
            Step("reached", best.xreplace({N: 8 * D}), "O3's cap reaches d2 at n = 8 d2", quantity="advised",
                 tex=r"(n d_2^2/8)^{1/3}\big|_{n = 8 d_2}"),
            Step("d2", D, "from there on it never acts on the extreme law", quantity="d2", tex=r"d_2"),
        ],
    ]  # fmt: skip

    def point(rng: random.Random) -> dict[sp.Symbol, Any]:
        return {
            D: 1 + sp.Rational(rng.randint(1, 40), 9),
            C: sp.Rational(rng.randint(1, 40), 9),
            N: sp.Integer(rng.randint(1, 50)),
        }

    return Derivation(chains, point, lambda instance: {D: instance.d2, C: 1.0, N: instance.n})


def unquartered(right: Any) -> Any:
    """Bug: (w - c)+ <= w^2/c in place of w^2/(4c)."""
    return lambda d2, n, cap: right(4.0 * d2, n, cap)


def variance_of_the_uncapped(right: Any) -> Any:
    """Bug: the variance of the uncapped weight as the certificate's second part, which does not depend on the cap."""
    return lambda chi2, n, cap: right(chi2, n, cap) - (cap - 1.0) / n + chi2 / n


THEOREM = Theorem(
    id="O10",
    kind="counterexample",
    refutes="a cap computed from the divergence alone always beats no cap",
    title="certificates from d2 alone lose to no cap at n >= (64/27) d2, and say nothing for caps >= d2",
    hypotheses=(
        "all that is known of the weight is E W = 1 and E W^2 = d2; n independent draws",
        "O3 for |f| <= 1 against d2/n without a cap, O4 for f = 1 against chi2/n",
        "for the extreme law: the cap is at least d2",
    ),
    statement="min_c [d2^2/(16c^2) + c/n] < d2/n iff n < (64/27) d2, and O4's least bound < chi2/n iff n < (64/27) chi2; "
    "for c >= d2 no certificate from d2 alone lies below d2/n (chi2/n for f = 1): W in {0, d2} is never capped. "
    "O3's cap is >= d2 from n = 8 d2 on",
    source="ours",
    claims=(
        Claim("threshold", "equal", "at_threshold", "no_cap", "at n = (64/27) d2 (chi2) the certificate is worth no cap exactly"),
        Claim("few_draws", "at_most", "few_draws", "no_cap", "with fewer draws it is below"),
        Claim("many_draws", "at_most", "no_cap", "many_draws", "with more it is above"),
        Claim("refuted", "differs", "certified_far", "no_cap",
              "'a cap from d2 always lowers the certified error': 1000 draws, d2 = 4", margin=0.5),
        Claim("caps_above_d2", "equal", "capped", "uncapped", "W in {0, d2}, f = +-1: a cap >= d2 leaves the error at d2/n"),
        Claim("constant_above_d2", "equal", "capped_constant", "uncapped_constant", "and at chi2/n for f = 1"),
        Claim("advised", "equal", "advised", "d2", "O3's cap for 8 d2 draws is d2"),
        Claim("a_cap_exists", "at_most", "exact", "exact_uncapped", "the exact cap never does worse than none"),
        Claim("and_gains", "differs", "exact_far", "no_cap", "here it gains: the certificate fails, not the cap", margin=1e-3),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="With more than 2.4 d2 draws, take the cap from the weights themselves or none: d2 alone cannot justify one.",
    mutants=(
        Mutant(name="cap_below_d2", kind="hypothesis", breaks=("caps_above_d2", "constant_above_d2"),
               measure=partial(measure, caps=BELOW), instances=lambda: [Knowledge("moderate", 2.5)],
               why="a smaller cap acts on W in {0, d2}, and a certificate can know it"),
        Mutant(name="bias_bound_without_the_quarter", kind="bug", breaks=("threshold", "few_draws"),
               instances=lambda: [Knowledge("moderate", 2.5), Knowledge("heavy", 60.0)],
               plant=lambda: planted(cap_bounds, "d2_bound", unquartered),
               why="four times the bias: the threshold comes earlier"),
        Mutant(name="variance_of_the_uncapped_weight", kind="bug", breaks=("threshold", "few_draws"),
               instances=lambda: [Knowledge("moderate", 2.5), Knowledge("heavy", 60.0)],
               plant=lambda: planted(cap_bounds, "chi2_bound", variance_of_the_uncapped),
               why="chi2/n plus a bias is above chi2/n for every n: no threshold at all"),
        Mutant(name="cap_less_its_own_law", kind="bug", breaks=("threshold", "few_draws", "advised"),
               instances=lambda: [Knowledge("moderate", 2.5), Knowledge("heavy", 60.0)],
               plant=lambda: planted(cap_bounds, "d2_cap", lambda right: lambda d2, n: sqrt(n)),
               why="the square root of n in place of O3's cap: not the minimizer, so the least bound is missed"),
    ),
)  # fmt: skip
