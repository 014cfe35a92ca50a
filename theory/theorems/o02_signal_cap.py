"""O2: for a general signal the best cap is the best of all roots, all weights, 0 and no cap; one root is not enough."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import sympy as sp

from testbed.weighting import cap_signal
from testbed.weighting.cap_signal import CapMinimum
from testbed.weighting.optimal_cap import local_minima, optimal_cap
from theory.cap_slope import ERROR, LOST, PHI, SLOPE, A, C, F, G, M, N, Q, Symbols, dot, moved, random_sums, sums
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.signal_cases import SignalCase, density_root, signal_cases
from theory.theorem import Claim, Mutant, Quantities, Theorem

GRID = 500
SLACK = 1e-12  # slopes of rounded sums
PI = sp.Symbol("p", positive=True)  # probability of the weight c


def choose(instance: SignalCase, minima: tuple[CapMinimum, ...], how: str) -> float:
    """Return the cap: the library's, or what a mutant takes for it."""
    roots = [m for m in minima if m.kind == "root"]
    if how == "roots_only":
        return min(roots, key=lambda m: m.mse).cap if roots else float("inf")
    if how == "first_root":
        return min((m.cap for m in roots), default=float("inf"))
    return float(optimal_cap(*instance.law, instance.n, signal=instance.signal))


def measure(instance: SignalCase, how: str = "library") -> Quantities:
    """Library's cap against a grid and its own list of minima; slopes at it and in between; the counterexamples.

    Mutants look at roots only, or at the first root they find (`how`).
    """
    minima = local_minima(*instance.law, n=instance.n, signal=instance.signal)
    cap = choose(instance, minima, how)
    top = float(instance.values.max())
    at = min(cap, top)
    least = instance.error(cap)
    grid = np.linspace(0.0, top * 1.02, GRID if len(instance.values) < 10 else 40)
    near = [instance.error(c) for c in (*grid, *(at * (1 + s) for s in (-1e-3, -1e-5, 1e-5, 1e-3)), np.inf)]
    atoms = [instance.error(float(w)) for w in np.unique(instance.values)[:: max(1, len(instance.values) // 40)]]
    left, right = instance.slopes(at)
    caps = instance.caps
    both = np.array([instance.slopes(float(c)) for c in caps])
    found: dict[str, Any] = {
        "least": least, "others": [*near, *atoms], "least_listed": min(m.mse for m in minima),
        "slope_left": both[:, 0], "slope_right": both[:, 1],
        "left": left if at > 0 else 0.0, "right": right if cap <= top else 0.0, "flat": SLACK, "minus_flat": -SLACK,
        "listed": [m.mse for m in minima],
        "beside": np.array([[instance.error(max(min(m.cap, top) + s, 0.0)) for s in (-1e-4, 1e-4)] for m in minima]).min(1),
    }  # fmt: skip
    atom = np.unique(instance.values)[1]
    found["kink"] = np.subtract(*reversed(instance.slopes(float(atom))))
    if any(m.kind == "root" for m in minima):
        found["roots"] = [m.cap for m in minima if m.kind == "root"][-1]
    return found | counterexamples(instance, minima, cap)


def counterexamples(instance: SignalCase, minima: tuple[CapMinimum, ...], cap: float) -> dict[str, Any]:
    """What the kept instances show."""
    if instance.name == "several_minima":
        first, *_, last = minima
        slopes = [abs(s) for m in minima for s in instance.slopes(m.cap)]
        return {"first_root": first.cap, "last_root": last.cap, "first_error": first.mse, "last_error": last.mse,
                "slopes_there": slopes, "no_slope": 0.0}  # fmt: skip
    if instance.name == "atom_without_root":
        knots = np.concatenate([[0.0], np.unique(instance.values)])
        inside = np.array([[instance.slopes(float(c))[side] for c, side in ((low, 1), (high, 0))]
                           for low, high in pairwise(knots)])  # fmt: skip
        left, right = instance.slopes(cap) if cap < np.inf else (0.0, 0.0)
        return {"atom": cap, "half": 0.5, "steep_left": left, "steep_right": right, "level": 0.0,
                "sign_changes": -(inside[:, 0] * inside[:, 1]), "roots_between": 0.0}  # fmt: skip
    if instance.name == "constant":
        return {"as_constant": cap, "exact_cap": optimal_cap(*instance.law, instance.n)}
    if instance.name in ("no_cap", "zero"):
        return {"end": 1.0 / (1.0 + cap), "named_end": 0.0 if instance.name == "no_cap" else 1.0}
    if instance.slope is not None:
        return {"grid_cap": cap, "density_root": density_root(*instance.slope, instance.n)}
    return {}


def _bind(instance: SignalCase) -> Symbols:
    """Sums over the outcomes, from the definition, at the caps of the slopes, at the last root and at the second weight."""
    law = (instance.values, instance.probs, instance.signal)
    right, left = sums(*law, instance.caps), sums(*law, instance.caps, left=True)
    roots = [m.cap for m in local_minima(*law[:2], n=instance.n, signal=instance.signal) if m.kind == "root"]
    root, atom = sums(*law, roots[-1:] or [1.0]), np.unique(instance.values)[1]
    at_atom = sums(*law, [atom])
    signal = instance.signal.reshape(len(instance.values), -1)[instance.values == atom][0]
    phi = [*signal, 0.0][:2]
    values = right | {marked(x, "l"): v for x, v in left.items()}
    values |= {marked(x, "r"): v[0] for x, v in root.items()} | {marked(x, "a"): v[0] for x, v in at_atom.items()}
    values |= {marked(C, "a"): atom, PI: instance.probs[instance.values == atom].sum()}
    return values | dict(zip(PHI, phi, strict=True)) | {C: instance.caps, N: float(instance.n), G: 0.0}


def marked(x: sp.Symbol, mark: str) -> sp.Symbol:
    """The same sum at another place."""
    return sp.Symbol(f"{x.name}_{mark}", **x._assumptions_orig)


def at(expr: sp.Expr, mark: str) -> sp.Expr:
    """An expression in the sums of another place."""
    return expr.xreplace({x: marked(x, mark) for x in (*A, *F, *M, Q, *((C,) if mark == "a" else ()))})


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    moments = dot(A, F) + dot(M, F) / N
    bend = dot(F, F) * (1 - 1 / N) + Q / N
    slopes = [
        Step("total", moved(ERROR), "move the cap: its own change, and outcomes of weight c that change sides",
             tex=r"\frac{d}{dc}\Big[|E(W-c)_+f|^2 + \frac{E|\min(W,c)f|^2 - |E\min(W,c)f|^2}{n}\Big]"),
        Step("slope", SLOPE, "outcomes of weight c have (W-c)+ = 0 and min(W,c) = W on either side: their density drops out",
             quantity="slope_right",
             tex=r"2\Big[-B_f\cdot E[f;W>c] + \frac{c\,E[|f|^2;W>c] - E[\min(W,c)f]\cdot E[f;W>c]}{n}\Big]"),
    ]  # fmt: skip
    left = [Step("left", at(SLOPE, "l"), "from the left the weight c itself counts as above", quantity="slope_left",
                 tex=r"\text{the same with } W \ge c")]  # fmt: skip
    closed = moments / bend
    root = [
        Step("root", at(closed, "r"), "between two weights the sums are constant: the slope is linear in c", quantity="roots",
             tex=r"c = \frac{E[Wf;W>c]\cdot F + E[Wf;W\le c]\cdot F/n}{|F|^2(1-1/n) + E[|f|^2;W>c]/n},\ F = E[f;W>c]"),
    ]  # fmt: skip
    zero = [
        Step("inserted", SLOPE.xreplace({C: closed}), "insert the root in the slope", tex=r"\frac{d}{dc}"),
        Step("stationary", sp.Integer(0), "it vanishes", tex="0"),
    ]
    before = {**{f: f + PI * phi for f, phi in zip(F, PHI, strict=True)},
              **{a: a + PI * C * phi for a, phi in zip(A, PHI, strict=True)},
              **{m: m - PI * C * phi for m, phi in zip(M, PHI, strict=True)}, Q: Q + PI * dot(PHI, PHI)}  # fmt: skip
    jump = (
        2 * PI * (dot(LOST, PHI) + (dot([m + C * f for m, f in zip(M, F, strict=True)], PHI) - C * dot(PHI, PHI)) / N)
    )
    kink = [
        Step("jump", at(SLOPE - SLOPE.xreplace(before), "a"), "right slope minus left slope at a weight c of probability p",
             tex=r"\partial_+ - \partial_-"),
        Step("kink", at(jump, "a"), "can have either sign: a minimum without a root where it lifts the slope over 0",
             quantity="kink", tex=r"2p\Big[B_f\cdot f_c + \frac{E[\min(W,c)f]\cdot f_c - c|f_c|^2}{n}\Big]"),
    ]  # fmt: skip

    def point(rng: random.Random) -> Symbols:
        values = random_sums(rng)
        for mark in ("l", "r", "a"):
            values |= {marked(x, mark): v for x, v in random_sums(rng).items()}
        return values | {PI: sp.Rational(rng.randint(1, 9), 10)}

    return Derivation([slopes, left, root, zero, kink], point, _bind)


def only(*names: str) -> list[SignalCase]:
    """Instances of these names."""
    return [w for w in signal_cases() if w.name in names]


def summed(right: Any) -> Any:
    """Bug: components of a signal are added up instead of squared one by one."""
    return lambda law, n: right(replace(law, signal=law.signal.sum(1, keepdims=True)), n)


def no_cross_term(right: Any) -> Any:
    """Bug: the mean square of the capped term for its variance."""

    def wrong(self: Any) -> np.ndarray:
        bend = (self.mass**2).sum(1) + self.power / self.n
        return (self.above * self.mass).sum(1) / np.where(bend > 0, bend, 1.0)

    return wrong


def first_stationary_point(right: Any) -> Any:
    """Bug: what a root-finder that starts at small caps returns."""

    def wrong(law: Any, n: float) -> float:
        minima = local_minima(law.values, law.probs, n=n, signal=law.signal)
        return minima[0].cap

    return wrong


THEOREM = Theorem(
    id="O2",
    kind="optimum",
    title="the exact cap for any signal: the best of all roots, all weights, 0 and no cap",
    hypotheses=(
        "W >= 0; f is any signal, a number or a vector (squares are then inner products)",
        "n independent draws; the error is |bias|^2 + tr Cov(min(W, c) f)/n",
        "for the stationarity condition at every cap: W has a density; for finite laws at caps that are no weight",
    ),
    statement="half the slope of the error is -B_f.E[f;W>c] + (c E[|f|^2;W>c] - E[min(W,c) f].E[f;W>c])/n, B_f = E[(W-c)+ f]; "
    "for a finite law (W >= c on the left) a minimum has left slope <= 0 <= right slope, and the least is the best of all roots, "
    "all weights, c = 0 and c = inf. There can be several minima, and a minimum at a weight without any root",
    source="ours",
    claims=(
        Claim("best", "at_most", "least", "others", "no cap of a grid, no weight, no neighbor, and not no cap has less error"),
        Claim("listed", "equal", "least", "least_listed", "it is the least of the local minima"),
        Claim("minima", "at_most", "listed", "beside", "each of those has no better neighbor"),
        Claim("left", "at_most", "left", "flat", "the slope just below it is <= 0"),
        Claim("right", "at_most", "minus_flat", "right", "and just above it >= 0"),
        Claim("several", "differs", "first_root", "last_root", "several minima: two roots far apart", margin=0.1),
        Claim("stationary", "equal", "slopes_there", "no_slope", "the slope vanishes at both"),
        Claim("not_equally_good", "differs", "first_error", "last_error", "the wrong one costs", margin=0.05),
        Claim("at_an_atom", "equal", "atom", "half", "a minimum at the weight 1/2"),
        Claim("falls_to_it", "differs", "steep_left", "level", "the slope below it is not 0", margin=0.1),
        Claim("rises_from_it", "differs", "steep_right", "level", "nor above it", margin=0.1),
        Claim("no_root", "at_most", "sign_changes", "roots_between", "and between two weights the slope never changes sign"),
        Claim("constant", "equal", "as_constant", "exact_cap", "a constant signal gives O1's cap"),
        Claim("ends", "equal", "end", "named_end", "no cap, or the estimator 0, can be best"),
        Claim("density", "equal", "grid_cap", "density_root", "a density's condition, to four digits", tolerance=1e-4),
    ),
    instances=signal_cases,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Look at every weight, every gap between weights, 0 and no cap: one call of a root-finder can return a cap that is "
    "worse than none.",
    mutants=(
        Mutant(name="roots_only", kind="hypothesis",
               breaks=("best", "listed", "left", "at_an_atom", "falls_to_it", "rises_from_it"),
               instances=lambda: only("atom_without_root"), measure=partial(measure, how="roots_only"),
               why="the density dropped: with atoms the stationarity condition has no root, and 'no cap' is what remains"),
        Mutant(name="one_root_finding_call", kind="hypothesis", breaks=("best", "listed"),
               instances=lambda: only("several_minima"), measure=partial(measure, how="first_root"),
               why="the first root is a local minimum, not the least"),
        Mutant(name="root_finder_in_the_library", kind="bug", breaks=("best", "listed"),
               instances=lambda: only("several_minima"),
               plant=lambda: planted(cap_signal, "signal_cap", first_stationary_point),
               why="needs two minima, the first one worse"),
        Mutant(name="mean_square_for_variance", kind="bug", breaks=("best", "minima", "right", "constant"),
               instances=lambda: only("constant"),
               plant=lambda: planted(cap_signal.Pieces, "stationary", no_cross_term),
               why="the squared mean is forgotten; the cap comes out too small"),
        Mutant(name="components_added", kind="bug", breaks=("best", "minima", "left"), instances=lambda: only("vector"),
               plant=lambda: planted(cap_signal, "pieces", summed),
               why="a vector signal becomes the sum of its components; needs components that do not vanish together"),
    ),
)  # fmt: skip
