"""Run many theorems or mutants, in parallel if asked, keeping what is finished when interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import joblib
import torch
from rich.console import Console
from rich.table import Table

from testbed.core.errors import InputError
from testbed.core.records import provenance, require_writable, write_json_atomic
from theory.catalogue import find, module_names
from theory.judge import judge, judge_mutant
from theory.progress import progress
from theory.verdict import MutantResult, Verdict
from theory.verdict_file import verdict_word

Result = TypeVar("Result")


def one_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Call with one numerical thread: workers must not fight over the cores."""
    torch.set_num_threads(1)
    return function(*args)


def run_in_order(function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Result]:
    """Yield results in the order of the calls as they become available."""
    if jobs == 1:
        yield from (one_thread(function, *c) for c in calls)
        return
    parallel = joblib.Parallel(n_jobs=min(jobs, max(len(calls), 1)), return_as="generator", batch_size=1)
    yield from parallel(joblib.delayed(one_thread)(function, *c) for c in calls)


def decide(theorem_id: str, mutants: bool, seed: int) -> Verdict:
    """Decide one theorem (module-level so that workers can import it)."""
    return judge(find(theorem_id), mutants, seed)


def verify_all(ids: Sequence[str], json: Path | None, *, mutants: bool, jobs: int, seed: int) -> int:
    """Decide theorems, print a table and write the records; returns the exit status."""
    started = time.perf_counter()
    header = provenance(seed)
    chosen = list(dict.fromkeys(find(i).id for i in ids)) if ids else list(module_names())
    if json is not None:
        require_writable(json)
    verdicts: list[Verdict] = []
    interrupted = False
    try:
        with progress("deciding", len(chosen)) as step:
            for verdict in run_in_order(decide, [(i, mutants, seed) for i in chosen], jobs):
                verdicts.append(verdict)
                step(verdict_line(verdict))
    except KeyboardInterrupt:
        interrupted = True
    header["seconds"] = round(time.perf_counter() - started, 3)
    header["complete"] = len(verdicts) == len(chosen)
    if json is not None:
        write_json_atomic(json, {"header": header, "verdicts": [v.record() for v in verdicts]})
    if sys.stdout.isatty():
        Console().print(verdict_table(verdicts))
    for v in verdicts:
        for problem in v.problems:
            print(f"{v.id}: {problem}")
    killed = sum(m.killed for v in verdicts for m in v.mutants)
    total = sum(len(v.mutants) for v in verdicts)
    good = sum(v.holds for v in verdicts)
    print(
        f"{good} of {len(chosen)} theorems decided as catalogued, "
        + (f"{killed} of {total} mutants killed, " if mutants else "mutants not run, ")
        + f"{header['seconds']:.1f} s"
        + (f"; records in {json}" if json else "")
    )
    if interrupted:
        print("interrupted: the verdicts above are kept", file=sys.stderr)
        return 130
    return 0 if good == len(chosen) else 1


def verdict_line(v: Verdict) -> str:
    """One plain line per verdict."""
    killed = f"{sum(m.killed for m in v.mutants)}/{len(v.mutants)}"
    return (
        f"{v.id:<4} {v.kind:<14} {verdict_word(v.record()):<18} gap {v.gap:8.1e}  instances {v.instances:>3}  "
        f"mutants {killed:>5}  {v.seconds:5.2f} s  {v.title}"
    )


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return the table a terminal shows."""
    table = Table(
        title="Verdicts",
        caption="gap of the main claim: rounding for an identity, minus the slack of a bound, the miss of a refuted claim",
    )
    for name in ("id", "kind", "verdict", "gap", "instances", "mutants killed", "what"):
        table.add_column(name, justify="right" if name in ("gap", "instances", "mutants killed") else "left")
    for v in verdicts:
        word = verdict_word(v.record())
        style = "green" if v.holds else "bold red"
        note = " (reading)" if v.reading else ""
        killed = f"{sum(m.killed for m in v.mutants)}/{len(v.mutants)}"
        table.add_row(v.id, v.kind, f"[{style}]{word}[/]", f"{v.gap:.1e}", str(v.instances), killed, v.title + note)
    return table


def break_one(theorem_id: str, mutant: str) -> MutantResult:
    """Run one mutant (module-level so that workers can import it)."""
    theorem = find(theorem_id)
    return judge_mutant(theorem, next(m for m in theorem.mutants if m.name == mutant))


def break_some(spec: str | None, json: Path | None, *, jobs: int) -> int:
    """Run the mutants of `ID`, one `ID:MUTANT`, or all (None); returns 1 when all are refuted, 3 when one survives."""
    if spec is None:
        calls = [(i, m.name) for i in module_names() for m in find(i).mutants]
    else:
        theorem_id, _, name = spec.partition(":")
        theorem = find(theorem_id)
        names = [m.name for m in theorem.mutants]
        if name and name not in names:
            raise InputError(
                f"{theorem.id} has no mutant of this name", found=repr(name), hint="it has " + ", ".join(names)
            )
        calls = [(theorem.id, n) for n in names if not name or n == name]
    if json is not None:
        require_writable(json)
    results: list[tuple[str, MutantResult]] = []
    interrupted = False
    try:
        with progress("breaking", len(calls)) as step:
            for (theorem_id, _), m in zip(calls, run_in_order(break_one, calls, jobs), strict=True):
                results.append((theorem_id, m))
                word = "REFUTED" if m.killed else "SURVIVED"
                needs = f"margin {m.margin:.3g}, needs > {m.required:.0e}"
                step(f"{word} {theorem_id}:{m.name} ({m.kind}) {needs}: {m.problem or m.why}")
    except KeyboardInterrupt:
        interrupted = True
    if json is not None:
        records = [
            {
                "theorem": i,
                "name": m.name,
                "kind": m.kind,
                "killed": m.killed,
                "margin": m.margin,
                "required": m.required,
                "broke": list(m.broke),
                "why": m.why,
                "problem": m.problem,
            }
            for i, m in results
        ]
        write_json_atomic(json, {"header": provenance(), "mutants": records})
    if interrupted:
        return 130
    survived = [f"{i}:{m.name}" for i, m in results if not m.killed]
    if survived:
        print(f"{len(survived)} of {len(results)} mutants survived: {', '.join(survived)}")
        return 3
    return 1
