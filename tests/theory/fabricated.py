"""A small made-up run: one theorem that holds, one refutation, one failure, one record with the contract's fields only."""

from __future__ import annotations

import json
from typing import Any

HOSTILE = "<script>alert('x')</script> & \"quoted\""

HEADER = {
    "version": "0.1.0", "git": "0123456789abcdef", "dirty": True, "python": "3.11.0", "torch": "2.9.0", "numpy": "2.0.0",
    "scipy": None, "sympy": "1.13.3", "platform": "Linux", "seed": 7, "started": "2026-01-02T03:04:05Z", "seconds": 1.5,
    "complete": True,
}  # fmt: skip

CLAIM = {
    "name": "two_means", "relation": "at_most", "says": "E_mu[W_(k)^2] <= d2", "holds": True, "instances": 3, "gap": -0.25,
    "slack": 0.25, "worst": "stale_start", "lhs": 0.1234567891, "rhs": "inf", "tolerance": 1e-10,
}  # fmt: skip

MUTANT = {
    "name": "labels_shifted", "kind": "bug", "killed": True, "margin": 0.5, "required": 1e-7, "why": "labels lag by one token",
    "broke": ["two_means"], "problem": "",
}  # fmt: skip


def verdict(theorem_id: str, **changes: Any) -> dict[str, Any]:
    """A full verdict record."""
    return {
        "id": theorem_id, "kind": "identity", "title": "a title", "source": "ours", "reading": False, "holds": True, "lhs": 1.0,
        "rhs": 1.0, "gap": 1.5e-15, "tolerance": 1e-10, "instances": 3, "mutants": [MUTANT], "seconds": 0.1,
        "sampled": {"passed": True, "statistic": 0.01, "threshold": 0.2, "n": 1595, "alpha": 5e-9, "power": 0.99, "effect": 0.3,
                    "what": "mean of W_T R"},
        "claims": [CLAIM], "derivation": {"holds": True, "steps": 4, "points": 5, "gap": 1e-16, "problem": ""},
        "hypotheses": ["every behavior supports the target"], "statement": "E_mu[W_T R sum_t s_t] = G", "outcome": "It works.",
        "problems": [], **changes,
    }  # fmt: skip


BARE = {
    "id": "C1", "kind": "report", "title": "bare", "source": "ours", "reading": False, "holds": True, "lhs": 0.25, "rhs": 0.5,
    "gap": 0.5, "tolerance": 0, "instances": 1, "mutants": [], "sampled": None, "seconds": 0.0,
}  # fmt: skip


def verdicts() -> list[dict[str, Any]]:
    """Verdicts of one run."""
    survivor = MUTANT | {"killed": False, "margin": 1e-12, "problem": "survived: violation 1e-12 is not above 1e-07"}
    return [
        verdict("S2", reading=True, source="literature; SPIRE's first reading"),
        verdict("S4", kind="counterexample", outcome="Readings of SPIRE: four."),
        verdict("S99", holds=False, title=HOSTILE, hypotheses=[HOSTILE], statement=HOSTILE, outcome=HOSTILE, source=HOSTILE,
                problems=[HOSTILE], mutants=[survivor | {"why": HOSTILE}], claims=[CLAIM | {"says": HOSTILE, "worst": HOSTILE}]),
        BARE,
    ]  # fmt: skip


def write_run(path, found: list[dict[str, Any]] | None = None):
    """Write a verdict file and return its path."""
    path.write_text(json.dumps({"header": HEADER, "verdicts": verdicts() if found is None else found}))
    return path
