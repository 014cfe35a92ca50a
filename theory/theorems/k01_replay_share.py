"""K1: the replay share of least error at a fixed budget, with its multipliers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from testbed.estimators import mixing, replay_mse
from testbed.estimators.mixing import optimal_replay_share
from testbed.estimators.replay_mse import mse_at_budget, sources
from theory import mixing_bugs
from theory.derivation import Derivation, Step
from theory.mixing_cases import MixingCase, MixingSymbols, numeric_least
from theory.planting import planted
from theory.pooled_means import Drawn, Law, enumerated_mse, mixture, two_point
from theory.share_steps import BEST, PROBES, share_chains
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_pools import TransformerPool, pool_derivation, transformer_pools

TRUTH, SKEW = 0.7, (0.3, 0.2)  # mean of the fresh law; probability of the upper value, fresh and replay


@dataclass(frozen=True, kw_only=True)
class Pool(MixingCase):
    """A problem whose budget buys exactly these numbers of samples."""

    n_fresh: int
    n_replay: int

    @property
    def laws(self) -> tuple[Law, Law]:
        """Laws of one fresh and of one replayed sample."""
        fresh = two_point(TRUTH, self.v_fresh, SKEW[0])
        return fresh, two_point(TRUTH + self.bias, self.v_replay, SKEW[1])

    @property
    def pools(self) -> list[tuple[int, int]]:
        """Numbers of fresh and of replayed samples."""
        return [(self.n_fresh, self.n_replay)]

    def error(self, fresh: int, replayed: int) -> float:
        """Error of a pool, outcome by outcome."""
        return enumerated_mse([Drawn(self.laws[0])] * fresh + [Drawn(self.laws[1])] * replayed, TRUTH)

    def copied_error(self, fresh: int, replayed: int) -> float:
        """The same if the replayed samples are one stored item, drawn again and again."""
        return enumerated_mse([Drawn(self.laws[0])] * fresh + [Drawn(self.laws[1], replayed)], TRUTH)

    def coin_error(self, fresh: int, replayed: int) -> float:
        """The same if each sample is replayed with probability a, rather than exactly a N of them."""
        n = fresh + replayed
        return enumerated_mse([Drawn(mixture(*self.laws, replayed / n))] * n, TRUTH)


def measure(case: Pool | TransformerPool) -> Quantities:
    """Error of each pool, counted out and by formula; the share, its multipliers, and what numeric search finds."""
    error = mse_at_budget(sources(**case.sources), case.given["budget"])
    counted, by_formula = [case.error(*pool) for pool in case.pools], [error.at(r / (f + r)) for f, r in case.pools]
    best = optimal_replay_share(**case.given)
    near = [min(max(best.share + d, 0.0), 1.0) for d in (-1e-2, -1e-4, 1e-4, 1e-2)]
    lower, upper = best.multipliers["at_least_0"], best.multipliers["at_most_1"]
    values = {
        "enumerated": counted, "mse": by_formula,
        "share": best.share, "least": best.mse, "numeric": numeric_least(case.mse), "neighbors": [case.mse(a) for a in near],
        "slope": error.slope(best.share), "multipliers": lower - upper, "zero": 0.0, "smallest": min(lower, upper),
        "slackness": [lower * best.share, upper * (1 - best.share)],
        "above": [error.at(a) - error.at(best.share) for a in PROBES],
        "samples": best.n_samples, "bought": case.given["budget"] / case.cost(best.share),
    }  # fmt: skip
    if best.other is not None:
        values |= {"one_end": case.mse(best.share), "other_end": case.mse(best.other)}
    if isinstance(case, TransformerPool):
        through = np.polynomial.Polynomial.fit([r / (f + r) for f, r in case.pools], counted, 2)
        values |= {"pools": counted, "searched": numeric_least(through)}
        values |= {"middle_counted": counted[1], "middle_mse": by_formula[1]}
    return values


class PoolSymbols(MixingSymbols):
    """Adds two-point laws with symbolic values, and budgets that buy a whole number of samples."""

    def __init__(self, n_fresh: int, n_replay: int) -> None:
        super().__init__()
        self.n_fresh, self.n_replay = n_fresh, n_replay
        self.values = (sp.symbols("x_1 x_2", real=True), sp.symbols("z_1 z_2", real=True))
        self.p = tuple(sp.Rational(str(s)) for s in SKEW)

    def mean(self, k: int) -> sp.Expr:
        """Mean of one fresh (0) or replayed (1) sample."""
        return self.p[k] * self.values[k][0] + (1 - self.p[k]) * self.values[k][1]

    def spread(self, k: int) -> sp.Expr:
        """Variance of one sample."""
        return self.p[k] * (1 - self.p[k]) * (self.values[k][0] - self.values[k][1]) ** 2

    def point(self, rng: random.Random) -> Mapping[sp.Symbol, sp.Rational]:
        """Random values of the samples; variances, bias and budget follow from them."""
        at = dict(super().point(rng))
        at.update({s: sp.Rational(rng.randint(-20, 20), 7) for pair in self.values for s in pair})
        at[BEST] = sp.Rational(rng.randint(0, 9), 9)
        at.update({self.vf: self.spread(0).subs(at), self.vr: self.spread(1).subs(at)})
        at[self.b] = (self.mean(1) - self.mean(0)).subs(at)
        at[self.C] = self.n_fresh * at[self.cf] + self.n_replay * at[self.cr]
        return at

    def bind(self, case: MixingCase) -> dict[sp.Symbol, Any]:
        """Numbers of a pool."""
        assert isinstance(case, Pool)
        values = super().bind(case) | {BEST: optimal_replay_share(**case.given).share}
        for symbols, law in zip(self.values, case.laws, strict=True):
            values.update(dict(zip(symbols, law[0], strict=True)))
        return values


@lru_cache(maxsize=32)
def _derivation(n_fresh: int, n_replay: int, bends: int) -> Derivation:
    w = PoolSymbols(n_fresh, n_replay)
    n, truth = n_fresh + n_replay, w.mean(0)
    stated = []
    for outcome in itertools.product((0, 1), repeat=n):
        kinds = [0] * n_fresh + [1] * n_replay
        prob = sp.prod([w.p[k] if i == 0 else 1 - w.p[k] for k, i in zip(kinds, outcome, strict=True)])
        mean = sp.Add(*[w.values[k][i] for k, i in zip(kinds, outcome, strict=True)]) / n
        stated.append(prob * (mean - truth) ** 2)
    share = sp.Rational(n_replay, n)
    split = (share * (w.mean(1) - truth)) ** 2 + (n_replay * w.spread(1) + n_fresh * w.spread(0)) / n**2
    error = [
        Step("definition", sp.Add(*stated), "every joint outcome of the pool", quantity="enumerated",
             tex=r"E\big(\tfrac1N\sum_i X_i - \theta\big)^2"),
        Step("bias_and_variance", split, "independent samples, aN of them replayed: cross terms have mean 0",
             tex=r"(aN b/N)^2 + (aN v_r + (1-a)N v_f)/N^2"),
        Step("budget", w.at_budget(share), "1/N = (a c_r + (1-a) c_f)/C", quantity="mse",
             tex=r"a^2b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f)/C"),
    ]  # fmt: skip
    return Derivation([error, *share_chains(w, bends)], w.point, w.bind)


def derive(case: Pool | TransformerPool) -> Derivation:
    """Steps for the number of samples and the bend of a case."""
    if isinstance(case, TransformerPool):
        return pool_derivation(*case.pools[1], 1 if case.bend > 0 else -1)
    return _derivation(case.n_fresh, case.n_replay, 1 if case.bend > 0 else -1)


def pool(name: str, n: tuple[int, int], v: tuple[float, float], c: tuple[float, float], bias: float) -> Pool:
    """Build a problem from (fresh, replay) pairs."""
    return Pool(name=name, v_fresh=v[0], v_replay=v[1], cost_fresh=c[0], cost_replay=c[1], bias=bias,
                n_fresh=n[0], n_replay=n[1], budget=n[0] * c[0] + n[1] * c[1])  # fmt: skip


def instances() -> list[Pool | TransformerPool]:
    """Interior, both corners with either bend, ties, no bias, saving or spread; one to five samples; a transformer's."""
    return [
        pool("interior", (3, 2), (1.0, 1.1), (1.0, 0.25), 0.6),
        pool("interior_negative_bias", (2, 2), (2.0, 2.5), (1.0, 0.125), -0.9),
        pool("none_convex", (2, 3), (1.0, 3.0), (1.0, 0.5), 1.5),
        pool("all_convex", (2, 3), (1.0, 1.1), (1.0, 0.1), 0.25),
        pool("none_concave", (2, 1), (1.0, 4.0), (1.0, 0.5), 0.1),
        pool("all_concave", (1, 3), (1.0, 1.5), (1.0, 0.25), 0.1),
        pool("tie", (2, 2), (1.0, 4.0), (1.0, 0.25), 0.0),
        pool("unbiased", (2, 2), (1.0, 2.0), (1.0, 0.25), 0.0),
        pool("same_cost", (2, 2), (1.0, 2.0), (1.0, 1.0), 0.5),
        pool("same_variance", (2, 2), (1.5, 1.5), (1.0, 0.25), 0.7),
        pool("one_fresh_sample", (1, 0), (1.0, 2.0), (1.0, 0.5), 0.4),
        pool("one_replayed_sample", (0, 1), (1.0, 2.0), (1.0, 0.5), 0.4),
        *transformer_pools(),
    ]


def coin_per_sample(case: Pool | TransformerPool) -> Quantities:
    """Mutated reading: each sample is replayed with probability a, rather than exactly a N of them."""
    return measure(case) | {"enumerated": [case.coin_error(*pool) for pool in case.pools]}


def coin_surplus(case: Pool | TransformerPool) -> Quantities:
    """What the coin adds, by the catalogued formula."""
    added = [case.coin_error(*pool) - case.error(*pool) for pool in case.pools]
    return {"coin_adds": added, "coin_formula": [f * r / (f + r) ** 3 * case.bias**2 for f, r in case.pools]}


def one_item_again(case: Pool | TransformerPool) -> Quantities:
    """Mutated reading: the replayed samples are one stored item, drawn again and again."""
    return measure(case) | {"enumerated": [case.copied_error(*pool) for pool in case.pools]}


MIXED = ("interior", "interior_negative_bias", "none_convex", "transformer_interior")
BAD_ENDS = ("none_concave", "all_concave", "transformer_all_concave")
THEOREM = Theorem(
    id="K1",
    kind="optimum",
    title="the replay share of least error at a fixed budget",
    hypotheses=(
        "N = C/(a c_r + (1-a) c_f) independent samples in one unweighted mean, N real",
        "exactly a N of them are replayed",
        "c_r <= c_f; replay has bias b, fresh samples have none; v_r may be below v_f, as under capped weights",
    ),
    statement="MSE(a) = a^2 b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f)/C is least at "
    "a* = clip((D_c v_f - D_v c_f)/(2(C b^2 - D_v D_c)), 0, 1) if C b^2 > D_v D_c, else at the better end; "
    "MSE'(a*) = multiplier(a >= 0) - multiplier(a <= 1), both >= 0 and slack where their bound does not hold; "
    "a coin per sample adds a(1-a) b^2/N",
    source="ours (KKT conditions of a quadratic); a reading of SPIRE's replay ratio",
    reading=True,
    references=("Boyd and Vandenberghe, Convex Optimization, 2004, section 5.5",),
    claims=(
        Claim("error", "equal", "enumerated", "mse", "the pool's error, outcome by outcome, is the quadratic"),
        Claim("least", "equal", "least", "numeric", "the share's error is what bounded search finds"),
        Claim("pools", "at_most", "least", "pools", "no pool of whole responses that the budget buys has less error"),
        Claim("searched", "equal", "least", "searched", "search on the parabola through three pools, each counted out"),
        Claim("neighbors", "at_most", "least", "neighbors", "no share nearby is better"),
        Claim("stationarity", "equal", "slope", "multipliers", "slope = difference of the multipliers"),
        Claim("signs", "at_most", "zero", "smallest", "multipliers are >= 0"),
        Claim("slackness", "equal", "slackness", "zero", "a multiplier is 0 where its bound does not hold"),
        Claim("ties", "equal", "one_end", "other_end", "both ends of a tie are equally good"),
        Claim("samples", "equal", "samples", "bought", "N is what the budget buys"),
        Claim("coin", "equal", "coin_adds", "coin_formula", "a coin per sample adds a(1-a) b^2/N"),
    ),
    instances=instances,
    measure=lambda case: measure(case) | coin_surplus(case),
    derive=derive,
    outcome="Replay a fixed share of the batch only where replay is biased little and saves much; else use one source.",
    mutants=(
        Mutant(name="bernoulli_allocation", kind="hypothesis", breaks=("error",), measure=coin_per_sample, on=MIXED,
               why="a coin per sample adds a(1-a) b^2/N; needs 0 < a < 1 and a bias"),
        Mutant(name="one_item_again", kind="hypothesis", breaks=("error",), measure=one_item_again, on=MIXED,
               why="replayed samples that are copies are not independent; needs two of them"),
        Mutant(name="stationary_whatever_the_bend", kind="bug", on=BAD_ENDS,
               breaks=("least", "neighbors", "stationarity", "pools", "searched"),
               plant=lambda: planted(mixing, "least_share", mixing_bugs.always_stationary),
               why="where the error bends down the stationary point is its maximum, or clips to the worse end"),
        Mutant(name="cross_term_dropped", kind="bug", breaks=("error", "least", "neighbors", "searched"),
               on=("interior_negative_bias", "transformer_interior"),
               plant=lambda: planted(replay_mse, "mse_at_budget", mixing_bugs.no_cross_term),
               why="cheaper samples are also more samples; needs D_v D_c != 0 and an interior optimum"),
    ),
)  # fmt: skip
