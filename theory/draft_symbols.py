"""Symbols for one speculative round: the target's and the drafter's law after each prefix, and what rejection does to them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import sympy as sp

from theory.draft_rounds import RoundCase

Run = tuple[int, ...]


class RoundSymbols:
    """p_h_x and q_h_x for every prefix h of fewer than `horizon` tokens, all positive.

    Examples
    --------
    >>> RoundSymbols(2, 1).p(())
    [p__0, p__1]
    """

    def __init__(self, vocab_size: int, horizon: int) -> None:
        self.tokens = range(vocab_size)
        self.prefixes = [h for t in range(horizon) for h in product(self.tokens, repeat=t)]

    def p(self, prefix: Run) -> list[sp.Symbol]:
        """Target's law after a prefix."""
        return self._law("p", prefix)

    def q(self, prefix: Run) -> list[sp.Symbol]:
        """Drafter's law after a prefix."""
        return self._law("q", prefix)

    def _law(self, side: str, prefix: Run) -> list[sp.Symbol]:
        return [sp.Symbol(f"{side}_{''.join(map(str, prefix))}_{x}", positive=True) for x in self.tokens]

    def point(self, rng: random.Random) -> Mapping[sp.Symbol, Any]:
        """Random rational laws without zeros, no two of them the same."""
        values: dict[sp.Symbol, Any] = {}
        for prefix in self.prefixes:
            for law in (self.p(prefix), self.q(prefix)):
                weights = [rng.randint(1, 99) for _ in law]
                values.update({s: sp.Rational(w, sum(weights)) for s, w in zip(law, weights, strict=True)})
        return values

    def bind(self, case: RoundCase) -> Mapping[sp.Symbol, float]:
        """The numbers of a case."""
        values: dict[sp.Symbol, float] = {}
        for h in self.prefixes:
            values.update(zip(self.p(h), case.p(h), strict=True))
            values.update(zip(self.q(h), case.q(h), strict=True))
        return values


def least(a: Any, b: Any) -> sp.Expr:
    """min(a, b)."""
    return sp.Min(a, b, evaluate=False)


def over(a: Any, b: Any) -> sp.Expr:
    """(a - b)+."""
    return sp.Max(a - b, 0, evaluate=False)


def kept(p: Sequence[Any], q: Sequence[Any]) -> list[sp.Expr]:
    """min(p, q), token by token."""
    return [least(a, b) for a, b in zip(p, q, strict=True)]


def left(p: Sequence[Any], q: Sequence[Any]) -> list[sp.Expr]:
    """(p - q)+, token by token."""
    return [over(a, b) for a, b in zip(p, q, strict=True)]
