"""K4: unbiased replay at a fixed budget is used for everything or for nothing."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import sympy as sp

from testbed.estimators import mixing
from testbed.estimators.mixing import optimal_replay_share
from testbed.estimators.replay_mse import mse_at_budget, sources
from theory import mixing_bugs
from theory.derivation import Derivation, Step
from theory.mixing_cases import MixingCase, MixingSymbols, numeric_least
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

PROBES = (0.1, 0.37, 0.5, 0.9)


def free(case: MixingCase) -> bool:
    """Whether nothing asks for an interior share: no bias, no pool, no ceiling."""
    return case.bias == 0 and case.pool is None and case.cost_cap is None


def measure(case: MixingCase, *, claimed: bool = False) -> Quantities:
    """Where the optimum lies. `claimed`: the corner is claimed although something asks for an interior share."""
    error = mse_at_budget(sources(**case.sources), case.given["budget"])
    best = optimal_replay_share(**case.given)
    depth = min(best.share, 1 - best.share)
    ends = min(case.mse(0.0), case.mse(1.0))
    straight = [(1 - p) * error.at(0) + p * error.at(1) for p in PROBES]
    over_chord = [error.at(p) - c for p, c in zip(PROBES, straight, strict=True)]
    if claimed or free(case):
        values: Quantities = {
            "depth": depth, "zero": 0.0, "least": best.mse, "better_end": ends, "numeric": numeric_least(case.mse),
            "over_chord": over_chord,
        }  # fmt: skip
        products = case.v_fresh * case.cost_fresh, case.v_replay * case.cost_replay
        if products[0] != products[1]:
            values |= {"share": best.share, "smaller_product": float(products[1] < products[0])}
        if error.square and 0.02 < (vertex := -error.linear / (2 * error.square)) < 0.98 and not claimed:
            values |= {"at_formula": case.mse(vertex), "at_optimum": best.mse}
        return values
    kind = "bias" if case.bias else "pool" if case.pool is not None else "ceiling"
    allowed = [a for a in np.linspace(0, 1, 501) if _meets(case, a)]
    found = min(case.mse(a) for a in allowed)
    return {
        "bent": over_chord,
        f"{kind}_interior": depth,
        "zero": 0.0,
        "interior_least": best.mse,
        "allowed_least": found,
    }


def _meets(case: MixingCase, share: float) -> bool:
    pool_ok = case.pool is None or share * float(case.budget or 0) / case.cost(share) <= case.pool
    return pool_ok and (case.cost_cap is None or case.cost(share) <= case.cost_cap)


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    w = MixingSymbols()
    f = lambda a: w.at_budget(a).subs(w.b, 0)  # noqa: E731
    zero, one, probes = sp.Integer(0), sp.Integer(1), [sp.Rational(str(p)) for p in PROBES]
    pooled = [
        Step("over_chord", [f(p) - (1 - p) * f(zero) - p * f(one) for p in probes],
             "error of a mixture minus that of its ends, without bias", tex=r"f(a) - (1-a) f(0) - a f(1)"),
        Step("product", [w.dv * w.dc * p * (1 - p) / w.C for p in probes],
             "two linear factors, one rising and one falling: never below the chord, so an end is best",
             quantity="over_chord", tex=r"D_v D_c\, a(1-a)/C \ge 0"),
    ]  # fmt: skip
    weight, s = sp.symbols("omega s")
    n_f, n_r = (1 - s) * w.C / w.cf, s * w.C / w.cr
    variance = (1 - weight) ** 2 * w.vf / n_f + weight**2 * w.vr / n_r
    best = sp.solve(sp.diff(variance, weight), weight)[0]
    weighted = [
        Step("best_weights", (1 / variance).subs(weight, best).subs(s, w.x),
             "sources weighted freely instead of pooled: reciprocal of the least variance, a share s of the budget on replay"),
        Step("linear", (1 - w.x) * w.C / (w.vf * w.cf) + w.x * w.C / (w.vr * w.cr),
             "linear in s: the source of smaller v c gets the whole budget",
             tex=r"(1-s)\frac{C}{v_f c_f} + s\frac{C}{v_r c_r}"),
    ]  # fmt: skip
    biased = [
        Step("over_chord", [w.at_budget(p) - (1 - p) * w.at_budget(zero) - p * w.at_budget(one) for p in probes],
             "the same with a bias", tex=r"f(a) - (1-a) f(0) - a f(1)"),
        Step("bend", [-w.bend / w.C * p * (1 - p) for p in probes], "the squared bias bends the error up: no end need be best",
             quantity="bent", tex=r"\big(D_v D_c/C - b^2\big)\, a(1-a)"),
    ]  # fmt: skip
    return Derivation([pooled, weighted, biased], w.point, w.bind)


def case(
    name: str, v_replay: float, cost_replay: float, *, bias: float = 0.0, budget: float = 10.0,
    pool: float | None = None, cost_cap: float | None = None,
) -> MixingCase:  # fmt: skip
    """Build a problem whose fresh samples have variance 1 and cost 1."""
    return MixingCase(name=name, v_fresh=1.0, v_replay=v_replay, cost_fresh=1.0, cost_replay=cost_replay, bias=bias,
                      budget=budget, pool=pool, cost_cap=cost_cap)  # fmt: skip


def corners() -> list[MixingCase]:
    """No bias: either end, a tie, and straight errors."""
    return [
        case("fresh_is_best", 4.0, 0.5),
        case("replay_is_best", 1.5, 0.25),
        case("tie", 4.0, 0.25),
        case("vertex_inside", 2.5, 0.5, budget=3.0),
        case("same_cost", 2.0, 1.0),
        case("same_variance", 1.0, 0.5),
        case("same_everything", 1.0, 1.0),
    ]


def biased() -> list[MixingCase]:
    """The same with a bias."""
    return [case("bias", 1.25, 0.25, bias=0.25, budget=16.0)]


def pooled() -> list[MixingCase]:
    """The same with few samples to replay."""
    return [case("pool", 1.5, 0.25, pool=6.0)]


def ceiled() -> list[MixingCase]:
    """The same with a ceiling on the cost of one sample."""
    return [case("ceiling", 4.0, 0.5, cost_cap=0.8)]


def claimed(case: MixingCase) -> Quantities:
    """Mutated reading: a corner is claimed all the same."""
    return measure(case, claimed=True)


def claimed_position(case: MixingCase) -> Quantities:
    """The same, of the position only: what a constraint forbids, the search over [0, 1] would find."""
    return {k: v for k, v in claimed(case).items() if k in ("depth", "zero")}


THEOREM = Theorem(
    id="K4",
    kind="counterexample",
    refutes="some share of replay between none and all is best even if replay has no bias",
    title="an interior replay share needs bias, a limited pool or a ceiling on cost",
    hypotheses=(
        "as K1, with b = 0",
        "no limit on how many samples can be replayed, and no constraint on throughput besides the budget",
    ),
    statement="b = 0: MSE(a) - (1-a) MSE(0) - a MSE(1) = D_v D_c a(1-a)/C >= 0, so a* is 0 or 1: all replay iff "
    "v_r c_r < v_f c_f, and the interior stationary point is the maximum; weighting the sources freely does not help (the "
    "precision is linear in the budget's split); with b != 0, a N <= P, or a c_r + (1-a) c_f <= tau there are interior optima",
    source="ours",
    claims=(
        Claim("corner", "equal", "depth", "zero", "without bias, pool or ceiling the share is 0 or 1"),
        Claim("which_corner", "equal", "share", "smaller_product", "the source of smaller variance times cost gets everything"),
        Claim("better_end", "equal", "least", "better_end", "its error is that of the better end"),
        Claim("numeric", "equal", "least", "numeric", "and bounded search finds nothing better"),
        Claim("formula_fails", "differs", "at_formula", "at_optimum", "the stationary share errs more", margin=1e-2),
        Claim("with_bias", "differs", "bias_interior", "zero", "bias alone makes the optimum interior"),
        Claim("with_pool", "differs", "pool_interior", "zero", "a limited pool alone does"),
        Claim("with_ceiling", "differs", "ceiling_interior", "zero", "a ceiling on cost alone does"),
        Claim("interior_is_best", "at_most", "interior_least", "allowed_least", "and no allowed share on a grid is better"),
    ),
    instances=lambda: [*corners(), *biased(), *pooled(), *ceiled()],
    measure=measure,
    derive=lambda case: _derivation(),
    outcome="If replay is taken to be unbiased, an interior replay ratio is not optimal: name what makes it so.",
    mutants=(
        Mutant(name="bias_allowed", kind="hypothesis", breaks=("corner", "which_corner", "better_end"), instances=biased,
               measure=claimed,
               why="a bias makes the error bend up; needs C b^2 > D_v D_c"),
        Mutant(name="pool_limited", kind="hypothesis", breaks=("corner",), instances=pooled, measure=claimed_position,
               why="the better end needs more stored samples than there are"),
        Mutant(name="throughput_constrained", kind="hypothesis", breaks=("corner",), instances=ceiled, measure=claimed_position,
               why="the better end costs more per sample than allowed"),
        Mutant(name="stationary_whatever_the_bend", kind="bug", on=("vertex_inside",),
               breaks=("corner", "which_corner", "better_end", "numeric"),
               plant=lambda: planted(mixing, "least_share", mixing_bugs.always_stationary),
               measure=lambda case: {k: v for k, v in measure(case).items() if k != "at_formula"},
               why="the formula without its condition returns the worst mixture; needs a vertex inside [0, 1]"),
    ),
)  # fmt: skip
