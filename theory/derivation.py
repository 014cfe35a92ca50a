"""Derivations that run: chains of sympy expressions, each step checked against the one before.

A step is checked exactly at random rational points of the theorem's parameter space (probabilities that sum to 1, ratios equal
to target over behavior, ...). Steps that carry the name of a quantity are also evaluated at every enumerated instance and
compared with the library's number of that name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import sympy as sp

from theory.evaluation import exact_values, float_values

POINTS = 5
DIGITS = 40


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a derivation.

    Parameters
    ----------
    label : str        short name, snake_case or words
    exprs : sympy expression or (nested) sequence of them
    why : str          the reason this line follows from the one before (or the definition it states)
    relation : str     "=" | "<=" | ">=": this line's relation *from the line before*: before (relation) this
    quantity : str     name of the library's number this line must equal at every instance
    tex : str          the line as a reader writes it, in LaTeX; default: sympy's own (of the first component)
    """

    label: str
    exprs: Any
    why: str
    relation: Literal["=", "<=", ">="] = "="
    quantity: str | None = None
    tex: str = ""

    def flat(self) -> list[sp.Expr]:
        """Components in row-major order."""
        return [sp.sympify(e) for e in _flatten(self.exprs)]


@dataclass(frozen=True, slots=True)
class Derivation:
    """Chains of steps, how to draw a valid point, and how to bind an instance's numbers.

    Parameters
    ----------
    chains : sequence of sequences of Step     each chain is checked on its own
    point : random.Random -> {Symbol: Rational}
    bind : instance -> {Symbol: float}
    """

    chains: Sequence[Sequence[Step]]
    point: Callable[[random.Random], Mapping[sp.Symbol, Any]]
    bind: Callable[[Any], Mapping[sp.Symbol, float]]

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [s for chain in self.chains for s in chain]


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, sp.MatrixBase):
        return list(value)
    if isinstance(value, list | tuple | np.ndarray):
        return [e for v in value for e in _flatten(v)]
    return [value]


def check_steps(derivation: Derivation, seed: int = 0) -> str:
    """Return "" if every step follows from the one before at five random rational points, else what went wrong."""
    rng = random.Random(seed)
    points = [dict(derivation.point(rng)) for _ in range(POINTS)]
    for chain in derivation.chains:
        found = {s for step in chain for e in step.flat() for s in e.free_symbols}
        symbols = sorted((s for s in found if isinstance(s, sp.Symbol)), key=str)  # an array goes by its label
        flat = [step.flat() for step in chain]
        for point in points:
            missing = [s for s in symbols if s not in point]
            if missing:
                return f"a random point does not bind {missing[:3]}"
            known = {s: point[s] for s in symbols}
            lines = [exact_values(exprs, known) for exprs in flat]
            for number in range(1, len(chain)):
                problem = _compare(lines[number - 1], lines[number], chain[number])
                if problem:
                    return problem
    return ""


def _compare(before: list[Any], after: list[Any], step: Step) -> str:
    if len(before) == 1 and len(after) > 1:
        before = before * len(after)
    if len(before) != len(after):
        return f"step '{step.label}' has {len(after)} components, the line before {len(before)}"
    for a, b in zip(before, after, strict=True):
        if a == b:
            continue
        gap = sp.sympify(a) - sp.sympify(b)
        if not gap.is_Rational:
            gap = sp.N(gap, DIGITS)
            if not gap.is_real:
                return f"step '{step.label}' is not real at a random point: {gap}"
            gap = sp.Integer(0) if abs(gap) < sp.Float(10) ** (8 - DIGITS) * (1 + abs(sp.N(b, DIGITS))) else gap
        wrong = gap != 0 if step.relation == "=" else (gap > 0 if step.relation == "<=" else gap < 0)
        if wrong:
            return f"step '{step.label}' does not follow: off by {sp.N(gap, 6)} at a random rational point"
    return ""


class Evaluator:
    """Evaluates the steps that name a quantity at instances, in float64."""

    def __init__(self, derivation: Derivation) -> None:
        self.bind = derivation.bind
        self.named = [s for s in derivation.steps if s.quantity]
        self.exprs = [s.flat() for s in self.named]

    def __call__(self, instance: Any) -> list[tuple[str, np.ndarray]]:
        """Return (quantity name, values) pairs at this instance."""
        values = self.bind(instance)
        sizes = [len(line) for line in self.exprs]
        flat = float_values([e for line in self.exprs for e in line], values)
        lines, start = [], 0
        for step, size in zip(self.named, sizes, strict=True):
            lines.append((str(step.quantity), np.array(flat[start : start + size], dtype=np.float64)))
            start += size
        return lines
