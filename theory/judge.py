"""Decide a theorem: claims on every instance, the derivation, the library against the derivation, mutants, the sampled check."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from theory.derivation import POINTS, Evaluator, check_steps
from theory.sampled import SEED
from theory.theorem import KILL_FACTOR, Claim, Mutant, Quantities, Theorem
from theory.verdict import ClaimResult, DerivationResult, MutantResult, Verdict

FLOOR = 1e-2


def _array(value: Any) -> np.ndarray:
    detached = value.detach() if hasattr(value, "detach") else value
    return np.asarray(detached, dtype=np.float64).reshape(-1)


def violation(claim: Claim, quantities: Quantities) -> tuple[float, float, float, float]:
    """Return (violation, gap, lhs, rhs) of a claim on one instance; it holds iff violation <= tolerance.

    `gap` is the scaled difference (for at_most: the scaled excess, negative when there is slack); lhs and rhs are the worst pair.
    """
    left, right = np.broadcast_arrays(_array(quantities[claim.left]), _array(quantities[claim.right]))
    if left.size == 0:
        return (0.0 if claim.relation != "differs" else claim.margin), 0.0, 0.0, 0.0
    both_infinite = (left == right) & np.isinf(left)
    if np.isnan(left).any() or np.isnan(right).any():
        return float("inf"), float("nan"), float(left.flat[0]), float(right.flat[0])
    finite = np.where(np.isfinite(left), np.abs(left), 0).max(), np.where(np.isfinite(right), np.abs(right), 0).max()
    scale = max(*finite, FLOOR)
    with np.errstate(invalid="ignore"):
        gap = np.where(both_infinite, 0.0, (left - right) / scale)
    if claim.relation != "at_most":
        gap = np.abs(gap)
    worst = int(gap.argmax())
    size = float(gap[worst])
    if claim.relation == "equal" and size <= claim.tolerance:  # nothing is wrong: show a component that says something
        worst = int(np.where(np.isfinite(left), np.abs(left), 0).argmax())
    wrong = claim.margin - size if claim.relation == "differs" else size
    return max(wrong, 0.0), size, float(left[worst]), float(right[worst])


def _judge_claims(
    theorem: Theorem, instances: Sequence[Any], measure: Callable[[Any], Quantities]
) -> tuple[dict[str, ClaimResult], dict[str, float], list[Quantities]]:
    """Return results per claim, the largest violation per claim, and the measured quantities."""
    measured = [measure(i) for i in instances]
    results: dict[str, ClaimResult] = {}
    violations: dict[str, float] = {}
    for claim in theorem.claims:
        cases = [
            (violation(claim, q), i.name)
            for i, q in zip(instances, measured, strict=True)
            if claim.left in q and claim.right in q
        ]
        if not cases:
            continue
        (wrong, gap, lhs, rhs), worst = max(cases, key=lambda c: c[0][0] if claim.relation != "at_most" else c[0][1])
        if claim.relation == "at_most":
            wrong = max(c[0][0] for c in cases)
        if claim.relation == "equal" and wrong <= claim.tolerance:
            (_, _, lhs, rhs), worst = max(cases, key=lambda c: abs(c[0][2]))
            gap = max(c[0][1] for c in cases)
        violations[claim.name] = wrong
        results[claim.name] = ClaimResult(
            name=claim.name,
            relation=claim.relation,
            says=claim.says,
            holds=wrong <= claim.tolerance,
            instances=len(cases),
            gap=gap,
            slack=-gap if claim.relation == "at_most" else None,
            worst=worst,
            lhs=lhs,
            rhs=rhs,
            tolerance=claim.tolerance,
        )
    return results, violations, measured


def judge_mutant(theorem: Theorem, mutant: Mutant) -> MutantResult:
    """Run a mutant: it is killed iff every claim it names is violated by the margin, and no other claim is."""
    by_name = {c.name: c for c in theorem.claims}
    unknown = [b for b in mutant.breaks if b not in by_name]
    if unknown or not mutant.breaks:
        raise InputError(f"mutant {theorem.id}:{mutant.name} must name claims of its theorem", found=unknown or "none")
    required = KILL_FACTOR * max(by_name[b].tolerance for b in mutant.breaks)
    with mutant.plant() if mutant.plant else nullcontext():
        instances = (mutant.instances or theorem.instances)()
        instances = [i for i in instances if not mutant.on or i.name in mutant.on]
        _, violations, _ = _judge_claims(theorem, instances, mutant.measure or theorem.measure)
    margins = {b: violations.get(b, 0.0) for b in mutant.breaks}
    margin = min(margins.values())
    broke = tuple(n for n, v in violations.items() if v > by_name[n].tolerance)
    extra = [n for n in broke if n not in mutant.breaks]
    problem = ""
    if not margin > required:
        problem = f"survived: violation {margin:.3g} is not above {required:.3g}"
    elif extra:
        problem = f"also broke {', '.join(extra)}, which it should leave alone"
    return MutantResult(
        name=mutant.name,
        kind=mutant.kind,
        killed=not problem,
        margin=margin,
        required=required,
        why=mutant.why,
        broke=broke,
        problem=problem,
    )


def judge_derivation(theorem: Theorem, instances: Sequence[Any], measured: Sequence[Quantities]) -> DerivationResult:
    """Check the steps of each instance's derivation and compare its named quantities with the library's."""
    checked: dict[int, Evaluator] = {}
    kept: list[Any] = []  # keep derivations alive so that their ids stay distinct
    steps, gap = 0, 0.0
    silent: list[str] = []
    for instance, quantities in zip(instances, measured, strict=True):
        derivation = theorem.derive(instance)
        if not derivation.steps:
            problem = f"{instance.name}: nothing is derived"
            return DerivationResult(holds=False, steps=steps, points=POINTS, gap=gap, problem=problem)
        if id(derivation) not in checked:
            kept.append(derivation)
            problem = check_steps(derivation)
            if problem:
                return DerivationResult(
                    holds=False, steps=steps, points=POINTS, gap=gap, problem=f"{instance.name}: {problem}"
                )
            checked[id(derivation)] = Evaluator(derivation)
            steps = max(steps, len(derivation.steps))
        evaluated = checked[id(derivation)](instance)
        if not any(name in quantities for name, _ in evaluated):
            silent.append(instance.name)
        for name, values in evaluated:
            if name not in quantities:
                continue
            claim = Claim(
                f"derivation of {name}", "equal", "library", "derivation", "the library computes what was derived"
            )
            library = _array(quantities[name])
            if values.size not in (1, library.size):
                problem = (
                    f"{instance.name}: {name} has {values.size} derived components and {library.size} in the library"
                )
                return DerivationResult(holds=False, steps=steps, points=POINTS, gap=gap, problem=problem)
            wrong, size, lhs, rhs = violation(claim, {"library": library, "derivation": values})
            gap = max(gap, size)
            if wrong > claim.tolerance:
                problem = f"{instance.name}: {name} is {lhs:.12g} in the library and {rhs:.12g} as derived"
                return DerivationResult(holds=False, steps=steps, points=POINTS, gap=gap, problem=problem)
    problem = "no derived quantity was compared" if len(silent) == len(instances) else ""
    return DerivationResult(
        holds=not problem, steps=steps, points=POINTS, gap=gap, problem=problem, silent=tuple(silent)
    )


def noticed(theorem: Theorem) -> str:
    """Return the claims that now break by more than 1000 tolerances ("" for none, "error: ..." if it cannot be measured)."""
    try:
        _, violations, _ = _judge_claims(theorem, theorem.instances(), theorem.measure)
    except Exception as error:  # a planted bug may make the library refuse its own output: that is noticing, too
        return f"error: {error!r}"
    limit = {c.name: KILL_FACTOR * c.tolerance for c in theorem.claims}
    return ", ".join(n for n, v in violations.items() if v > limit[n])


def judge(theorem: Theorem, mutants: bool = True, seed: int = 0) -> Verdict:
    """Decide one theorem (see `theory.theorem`)."""
    started = time.perf_counter()
    instances = theorem.instances()
    names = [i.name for i in instances]
    if len(set(names)) != len(names):
        raise InputError(f"instances of {theorem.id} must have distinct names", found=names)
    results, violations, measured = _judge_claims(theorem, instances, theorem.measure)
    problems = [f"claim '{c.name}' was exercised by no instance" for c in theorem.claims if c.name not in results]
    problems += [
        f"claim '{r.name}' fails on {r.worst}: {r.lhs:.12g} against {r.rhs:.12g}"
        for r in results.values()
        if not r.holds
    ]
    derivation = judge_derivation(theorem, instances, measured)
    if not derivation.holds:
        problems.append(f"derivation: {derivation.problem}")
    killed: list[MutantResult] = []
    if mutants:
        killed = [judge_mutant(theorem, m) for m in theorem.mutants]
        problems += [f"mutant '{m.name}' {m.problem}" for m in killed if not m.killed]
        kinds = {m.kind for m in theorem.mutants}
        if theorem.kind != "report":
            problems += [f"no {kind} mutant is named" for kind in ("hypothesis", "bug") if kind not in kinds]
    sampled = None
    if theorem.sampled is not None:
        outcome = theorem.sampled().run(SEED[str(seed)])
        sampled = outcome.record()
        if not outcome.passed:
            problems.append(
                f"sampled check fails: statistic {outcome.statistic:.4g}, threshold {outcome.threshold:.4g}"
            )
    main = max(results.values(), key=lambda r: violations[r.name], default=None) if problems else None
    relation = {"bound": "at_most", "counterexample": "differs"}.get(theorem.kind, "equal")  # what the kind is about
    typical = next((r for r in results.values() if r.relation == relation), None)
    first = main or typical or next(iter(results.values()), None)
    return Verdict(
        id=theorem.id,
        kind=theorem.kind,
        title=theorem.headline,
        source=theorem.source,
        reading=theorem.reading,
        holds=not problems,
        lhs=first.lhs if first else 0.0,
        rhs=first.rhs if first else 0.0,
        gap=first.gap if first else 0.0,
        tolerance=first.tolerance if first else 0.0,
        instances=len(instances),
        mutants=tuple(killed),
        sampled=sampled,
        seconds=time.perf_counter() - started,
        claims=tuple(results.values()),
        derivation=derivation,
        hypotheses=theorem.hypotheses,
        statement=theorem.statement,
        outcome=theorem.outcome,
        problems=tuple(problems),
        table=tuple(theorem.table()) if theorem.table else (),
    )


def verify(theorem_id: str, mutants: bool = True, seed: int = 0) -> Verdict:
    """Decide a catalogue entry by id.

    Parameters
    ----------
    theorem_id : str   for instance "S4"
    mutants : bool     also run its mutants
    seed : int         seed of the sampled check, if it has one

    Returns
    -------
    Verdict   .holds, .lhs, .rhs, .gap, .mutants, ...

    Raises
    ------
    InputError   unknown id (names the nearest)
    """
    from theory.catalogue import find

    return judge(find(theorem_id), mutants, seed)


def break_mutant(theorem_id: str, mutant_name: str) -> MutantResult:
    """Run one mutant of one theorem.

    Raises
    ------
    InputError   unknown theorem or mutant (names those there are)
    """
    from theory.catalogue import find

    theorem = find(theorem_id)
    for mutant in theorem.mutants:
        if mutant.name == mutant_name:
            return judge_mutant(theorem, mutant)
    raise InputError(
        f"{theorem.id} has no mutant of this name",
        found=repr(mutant_name),
        hint="it has " + ", ".join(m.name for m in theorem.mutants),
    )
