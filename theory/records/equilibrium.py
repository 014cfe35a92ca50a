"""Best replay share against the share in use, whose replayed samples age: it meets the diagonal never, once or oftener."""

from __future__ import annotations

import itertools
from bisect import bisect
from typing import Any

from testbed.estimators.mixing import optimal_replay_share
from theory.replay_equilibria import AgingCase
from theory.theorems.k05_replay_equilibrium import equilibria

NAMES = ("none", "two", "three")  # of K5
ONE = AgingCase(name="one", v_fresh=1.0, cost_replay=0.1, budget=32.0, bias=0.2, growth=0.04, expected=1)
POINTS = 401
BESIDE = 1e-6  # the response just before and just after it leaps


def response(case: AgingCase, share: float) -> float:
    """Best share for the variance that replayed samples have when `share` is in use."""
    return optimal_replay_share(
        v_fresh=case.v_fresh, v_replay=case.v_replay(share), cost_fresh=case.cost_fresh, cost_replay=case.cost_replay,
        bias=case.bias, budget=case.budget,
    ).share  # fmt: skip


def record() -> dict[str, Any]:
    """Return best responses and their fixed points, exact.

    Returns
    -------
    dict   cases: case, verdict, given, equilibria (shares), jumps (shares where the best response leaps over the share),
           existence_guaranteed, uniqueness_guaranteed, pieces: lists of share and response between the leaps, and
           v_replay: V(a) at `share`
    """
    known = {case.name: case for case in equilibria()}
    cases = []
    for case in (ONE, *(known[name] for name in NAMES)):
        found = case.found
        grid = [k / (POINTS - 1) for k in range(POINTS)]
        grid = sorted({*grid, *(jump + side for jump in found.jumps for side in (-BESIDE, BESIDE))})
        ends = [0, *(bisect(grid, jump) for jump in found.jumps), len(grid)]
        pieces = [grid[start:stop] for start, stop in itertools.pairwise(ends)]
        cases.append({
            "case": case.name, "verdict": found.verdict, "equilibria": list(found.shares), "jumps": list(found.jumps),
            "given": {key: getattr(case, key)
                      for key in ("v_fresh", "cost_fresh", "cost_replay", "budget", "bias", "growth", "longest")},
            "existence_guaranteed": found.existence_guaranteed, "uniqueness_guaranteed": found.uniqueness_guaranteed,
            "pieces": [{"share": piece, "response": [response(case, a) for a in piece]} for piece in pieces],
            "share": grid, "v_replay": [case.v_replay(a) for a in grid],
        })  # fmt: skip
    return {"cases": cases}
