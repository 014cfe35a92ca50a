"""The kill matrix: every planted bug under every theorem, to see which theorems notice it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.core.records import provenance, require_writable, write_json_atomic
from theory.catalogue import find, module_names
from theory.judge import noticed
from theory.progress import progress
from theory.run import run_in_order


def row(owner: str, mutant_name: str, ids: list[str]) -> dict[str, str]:
    """Outcome of one planted bug under each theorem: the claims it breaks, "" for none, or "error: ..."."""
    mutant = next(m for m in find(owner).mutants if m.name == mutant_name)
    assert mutant.plant is not None
    outcome = {}
    for theorem_id in ids:
        theorem = find(theorem_id)
        with mutant.plant():
            outcome[theorem_id] = noticed(theorem)
    return outcome


def kill_matrix(ids: Sequence[str], json: Path | None, *, jobs: int) -> int:
    """Print bugs x theorems; returns 0 if every bug is noticed by at least the theorem that names it, 3 otherwise."""
    columns = [find(i).id for i in ids] if ids else list(module_names())
    if json is not None:
        require_writable(json)
    bugs = [(i, m.name) for i in columns for m in find(i).mutants if m.plant is not None and m.kind == "bug"]
    width = max([len(f"{i}:{n}") for i, n in bugs], default=10)
    print(" " * width + "  " + " ".join(f"{c:>4}" for c in columns))
    rows: dict[str, dict[str, str]] = {}
    with progress("planting", len(bugs)) as step:
        for (owner, name), outcome in zip(
            bugs, run_in_order(row, [(i, n, columns) for i, n in bugs], jobs), strict=True
        ):
            rows[f"{owner}:{name}"] = outcome
            marks = " ".join(
                f"{'X' if v and not v.startswith('error') else 'E' if v else '.':>4}" for v in outcome.values()
            )
            step(f"{owner + ':' + name:<{width}}  {marks}")
    print("X notices (a claim breaks by > 1000 tolerances), E stops with an error, . does not notice")
    if json is not None:
        write_json_atomic(json, {"header": provenance(), "matrix": rows})
    missed = [f"{i}:{n}" for i, n in bugs if not rows[f"{i}:{n}"].get(i)]
    if missed:
        print(f"not noticed by their own theorem on its full instance set: {', '.join(missed)}", file=sys.stderr)
        return 3
    return 0
