"""K3: error against cost per sample: when a weighted sum finds the whole front, and what it misses when it does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from testbed.estimators import pareto_front as fronts
from testbed.estimators.pareto_front import ParetoFront, Piece, pareto_front
from theory.derivation import Derivation, Step
from theory.mixing_cases import GRID, MixingCase, MixingSymbols
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

PROBES = (0.0, 0.25, 0.5, 0.75)
DIGITS = (0.0, 0.786, 1.0, 1.0)  # catalogued front: [0, .786) and {1}


def front_of(case: MixingCase) -> ParetoFront:
    """The library's front of a case."""
    return pareto_front(**{k: v for k, v in case.given.items() if k != "cost_cap"})


def undominated(cost: np.ndarray, error: np.ndarray) -> np.ndarray:
    """1 for each point that no other is at least as good as in both objectives and better in one."""
    no_worse = (cost[None, :] <= cost[:, None]) & (error[None, :] <= error[:, None])
    better = (cost[None, :] < cost[:, None]) | (error[None, :] < error[:, None])
    return 1.0 - (no_worse & better).any(1)


def hull_height(cost: np.ndarray, error: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Lower convex hull of the points (cost, error), evaluated at some costs: the best bound weighted sums can give."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(zip(cost.tolist(), error.tolist(), strict=True)):
        while len(hull) > 1 and _turns_right(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    xs, ys = zip(*hull, strict=True)
    return np.interp(at, xs, ys)


def _turns_right(p: tuple[float, float], q: tuple[float, float], r: tuple[float, float]) -> bool:
    return (q[0] - p[0]) * (r[1] - p[1]) <= (r[0] - p[0]) * (q[1] - p[1])


def measure(case: MixingCase) -> Quantities:
    """Front, gaps and weighted sums of the library against comparison of all pairs and a convex hull."""
    front = front_of(case)
    ends = [end for piece in front.pieces for end in (piece.low, piece.high)]
    shares = np.unique(np.concatenate([GRID, ends]))
    cost, error = np.array([case.cost(a) for a in shares]), np.array([case.mse(a) for a in shares])
    on_front = np.array([front.optimal(a) for a in shares])
    mine = shares[on_front]
    inner = mine[(mine > 0) & (mine < 1)]
    weights = [
        0.0,
        *np.geomspace(1e-3, 1e3, 61),
        *[max(front.error.slope(a), 0.0) / max(front.given.saving, 1e-9) for a in mine],
    ]
    returned = [a for weight in weights for a in front.weighted_sum(weight)]
    gaps = np.array([front.gap(a) for a in mine])
    inside = (shares[:, None] != np.array(ends)[None, :]).all(1)  # a rounded end may fall on either side
    values: dict[str, Any] = {
        "optimal": on_front[inside].astype(float), "compared": undominated(cost, error)[inside],
        "gap": gaps, "above_hull": error[on_front] - hull_height(cost, error, cost[on_front]),
        "errors": [front.error.at(p) for p in PROBES],
        "constrained": [front.at_cost(case.cost(a)) for a in mine], "front_share": mine, "zero": 0.0,
    }  # fmt: skip
    if case.budget is None:
        values |= {"size_gap": gaps, "touching": [_nearest(front, a) for a in inner], "touched": inner}
    elif case.bend < 0:
        values |= {"off_the_ends": [min(a, 1 - a) for a in returned]}
        if inner.size:
            values |= {"missed": gaps.max(), "gap_at_probes": [-front.error.square * a * (1 - a) for a in PROBES]}
    if case.name == "catalogued":
        values |= {"printed": DIGITS, "pieces": ends,
                   "reflected": front.error.at(front.pieces[0].high) - front.error.at(1)}  # fmt: skip
    return values


def _nearest(front: ParetoFront, share: float) -> float:
    """What the weighted sum returns whose weight is the slope of the front at a share."""
    found = front.weighted_sum(max(front.error.slope(share), 0.0) / front.given.saving)
    return share if len(found) == 2 and front.error.square == 0 else found[0]  # a straight front: every share ties


@lru_cache(maxsize=2)
def _derivation(at_budget: bool) -> Derivation:
    w = MixingSymbols()
    a, x = w.a, w.x
    probes = [sp.Rational(str(p)) for p in PROBES]
    if not at_budget:
        errors = [
            Step("definition", [w.at_size(p) for p in probes], "squared bias and variance of N samples", quantity="errors",
                 tex=r"a^2 b^2 + (a v_r + (1-a) v_f)/N"),
            Step("quadratic", [w.vf / w.N + w.dv / w.N * p + w.b**2 * p**2 for p in probes], "in powers of a: never bends down",
                 tex=r"\tfrac{v_f}{N} + \tfrac{D_v}{N} a + b^2 a^2"),
        ]  # fmt: skip
        weight = sp.diff(w.at_size(a), a) / w.dc
        supported = [
            Step("weighted_sum", w.at_size(x) + weight * w.cost(x) - w.at_size(a) - weight * w.cost(a),
                 "weighted sum at any share x over that at a, with the slope of the front at a as weight"),
            Step("square", w.b**2 * (x - a) ** 2, "cost is linear and the error convex: never negative, so a minimizes the sum",
                 tex=r"b^2 (x-a)^2"),
        ]  # fmt: skip
        hull = [Step("gap", 0 * w.b, "a minimizer of a weighted sum lies on the hull", quantity="size_gap")]
        return Derivation([errors, supported, hull], w.point, w.bind)
    f = w.at_budget
    one, zero = sp.Integer(1), sp.Integer(0)
    linear = w.dv * w.cf - w.vf * w.dc
    errors = [
        Step("definition", [f(p) for p in probes], "squared bias and variance of N = C/cost(a) samples", quantity="errors",
             tex=r"a^2 b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f)/C"),
        Step("quadratic", [(w.vf * w.cf + linear * p + w.bend * p**2) / w.C for p in probes],
             "in powers of a: bends down iff C b^2 < D_v D_c",
             tex=r"\big(v_f c_f + (D_v c_f - v_f D_c)\, a + (C b^2 - D_v D_c)\, a^2\big)/C"),
    ]  # fmt: skip
    gap = [
        Step("above_chord", [f(p) - (1 - p) * f(zero) - p * f(one) for p in probes],
             "the hull of a front that bends down is the chord between its ends"),
        Step("bend", [-w.bend / w.C * p * (1 - p) for p in probes], "a quadratic over its chord", quantity="gap_at_probes",
             tex=r"\frac{D_vD_c - Cb^2}{C}\, a(1-a)"),
    ]  # fmt: skip
    vertex = sp.solve(sp.diff(f(a), a), a)[0]
    other = [
        Step("reflected", f(2 * vertex - 1) - f(one), "shares beyond 2v - 1 have more error than all replay, and cost more",
             tex=r"\mathrm{MSE}(2v - 1) - \mathrm{MSE}(1)"),
        Step("symmetric", 0 * w.b, "a parabola is symmetric about its vertex v", quantity="reflected", tex="0"),
    ]  # fmt: skip
    return Derivation([errors, gap, other], w.point, w.bind)


def derive(case: MixingCase) -> Derivation:
    """Steps at a fixed budget or at a fixed size."""
    return _derivation(case.budget is not None)


def case(name: str, v: tuple[float, float], c: tuple[float, float], bias: float, **size: float) -> MixingCase:
    """Build a problem from (fresh, replay) pairs and `n` or `budget`."""
    return MixingCase(name=name, v_fresh=v[0], v_replay=v[1], cost_fresh=c[0], cost_replay=c[1], bias=bias, **size)


def instances() -> list[MixingCase]:
    """Fixed sizes; budgets whose error bends down, up, and not at all; the catalogued front."""
    return [
        case("catalogued", (1.0, 4.0), (1.0, 0.5), 0.1, budget=10),
        case("size", (1.0, 4.0), (1.0, 0.5), 0.5, n=10),
        case("size_unbiased", (1.0, 4.0), (1.0, 0.5), 0.0, n=10),
        case("size_quieter_replay", (4.0, 1.0), (1.0, 0.5), 1.0, n=4),
        case("whole_interval", (1.0, 8.0), (1.0, 0.9), 0.2, budget=10),
        case("only_replay", (1.0, 1.1), (1.0, 0.1), 0.1, budget=4),
        case("unbiased", (1.0, 3.0), (1.0, 0.5), 0.0, budget=8),
        case("bends_up", (1.0, 1.25), (1.0, 0.25), 0.25, budget=16),
        case("one_sample", (2.0, 3.0), (1.0, 0.25), 0.1, budget=1),
    ]


def claimed_at_budget(case: MixingCase) -> Quantities:
    """Mutated reading: no gap, claimed of a fixed budget whose error bends down."""
    front = front_of(case)
    return {"size_gap": [front.gap(a) for a in GRID if front.optimal(a)], "zero": 0.0}


def claimed_when_bending_up(case: MixingCase) -> Quantities:
    """Mutated reading: weighted sums return ends only, claimed of an error that bends up."""
    front = front_of(case)
    returned = [a for weight in np.geomspace(1e-3, 1e3, 61) for a in front.weighted_sum(weight)]
    return {"off_the_ends": [min(a, 1 - a) for a in returned], "zero": 0.0}


def hull_only(right: Any) -> Any:
    """Bug: the front is taken to be what weighted sums return."""

    def wrong(error: Any, saving: float) -> Sequence[Piece]:
        pieces = right(error, saving)
        return (
            tuple(Piece(end, end) for end in (0.0, 1.0) if any(end in p for p in pieces))
            if error.square < 0
            else pieces
        )

    return wrong


def whole_interval(right: Any) -> Any:
    """Bug: every share is reported, although all replay beats some in both objectives."""
    return lambda error, saving: (Piece(0.0, 1.0),)


THEOREM = Theorem(
    id="K3",
    kind="counterexample",
    refutes="weighting error against cost finds every Pareto-optimal share",
    title="weighted sums find the whole front at a fixed size, and may find only its ends at a fixed budget",
    hypotheses=(
        "objectives: mean squared error (K1 at a budget, K2 at a size) and cost per sample; c_r <= c_f",
        "zero gap: N is fixed. Ends only: the budget is fixed and C b^2 < D_v D_c",
    ),
    statement="fixed N: every Pareto point minimizes MSE + w cost for some w >= 0, and the duality gap is 0; fixed budget with "
    "C b^2 < D_v D_c: weighted sums return a in {0, 1} only, the front is [0, 2v - 1) and {1} (v the vertex; all of [0, 1] if "
    "v >= 1), the epsilon-constraint form finds it, at gap (D_v D_c/C - b^2) a (1-a)",
    source="literature (supported and unsupported efficient points); the front and its gap: ours",
    references=("Ehrgott, Multicriteria Optimization, 2005, chapters 3 and 4",),
    claims=(
        Claim("front", "equal", "optimal", "compared", "the front is what comparison of all pairs leaves"),
        Claim("gap", "equal", "gap", "above_hull", "the gap is the height over the convex hull of all points"),
        Claim("constraint_form", "equal", "constrained", "front_share", "the ceiling cost(a) returns every share a of the front"),
        Claim("zero_gap", "equal", "size_gap", "zero", "fixed N: no Pareto point lies over the hull"),
        Claim("scalarized", "equal", "touching", "touched", "fixed N: the slope at a as weight returns a"),
        Claim("ends_only", "equal", "off_the_ends", "zero", "fixed budget, bending down: weighted sums return 0 or 1"),
        Claim("missed", "differs", "missed", "zero", "and miss Pareto points by this much", margin=1e-2),
        Claim("catalogued_digits", "equal", "pieces", "printed", "to the digits printed: [0, .786) and {1}", tolerance=5e-4),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="At a fixed budget tune the share under a ceiling on cost; sweeping a weight jumps from no replay to all replay.",
    mutants=(
        Mutant(name="gap_zero_at_a_budget", kind="hypothesis", breaks=("zero_gap",), measure=claimed_at_budget,
               on=("catalogued", "whole_interval", "unbiased"), why="N grows as samples get cheaper: the error bends down"),
        Mutant(name="ends_only_when_bending_up", kind="hypothesis", breaks=("ends_only",), measure=claimed_when_bending_up,
               on=("bends_up",), why="with C b^2 > D_v D_c weighted sums do return interior shares"),
        Mutant(name="hull_only", kind="bug", breaks=("front",), on=("catalogued", "whole_interval"),
               plant=lambda: planted(fronts, "_front", hull_only),
               measure=lambda case: {k: v for k, v in measure(case).items() if k in ("optimal", "compared")},
               why="a front computed by weighted sums lacks the unsupported points; needs an error that bends down"),
        Mutant(name="dominated_kept", kind="bug", breaks=("front", "constraint_form"), on=("catalogued",),
               plant=lambda: planted(fronts, "_front", whole_interval),
               measure=lambda case: {k: v for k, v in measure(case).items() if k not in ("pieces", "missed")},
               why="shares in [2v - 1, 1) cost more than all replay and err more; needs a vertex inside"),
    ),
)  # fmt: skip
