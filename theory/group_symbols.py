"""Groups over symbols: all multisets of M draws of a symbolic world with their probabilities, and sums over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from typing import Any

import sympy as sp

from theory.derivation import Derivation
from theory.symbols import Prefix, SymbolicWorld, symbolic_world

SYMBOLIC = 1000  # multisets times logits up to which a derivation over symbols is run
Draw = tuple[int, Prefix]  # realization of the schedule's noise, response
Coefficient = Callable[[Sequence[Draw], int], Any]  # of response i of a group


@lru_cache(maxsize=64)
def multiset_probabilities(count: int, size: int) -> list[tuple[sp.Integer, tuple[int, ...]]]:
    """Multinomial coefficients of all multisets of `size` out of `count`.

    Examples
    --------
    >>> multiset_probabilities(2, 2)
    [(1, (0, 0)), (2, (0, 1)), (1, (1, 1))]
    """
    found = []
    for rows in combinations_with_replacement(range(count), size):
        ways = factorial(size) // prod(factorial(c) for c in Counter(rows).values())
        found.append((sp.Integer(ways), rows))
    return found


class SymbolicGroup:
    """Groups of M responses of a symbolic world, drawn by its sampler or on-policy."""

    def __init__(self, world: SymbolicWorld, size: int, on_policy: bool = False) -> None:
        self.world, self.size = world, size
        draws = [(0, y, world.prob_pi(y)) for y in world.leaves] if on_policy else world.draws()
        self.draws: list[Draw] = [(xi, y) for xi, y, _ in draws]
        self.probs = [p for _, _, p in draws]
        self.scores = {y: self.score(y) for y in world.leaves}

    def score(self, y: Prefix) -> list[sp.Expr]:
        """Score of a whole response, one component per logit."""
        w = self.world
        return [sp.Add(*[w.score(y, t, h, b) for t in range(len(y))]) for h, b in w.parameters]

    def update(self, coefficient: Coefficient) -> list[sp.Expr]:
        """E[sum_i coefficient(group, i) s_i], summed over all groups."""
        total: list[list[sp.Expr]] = [[] for _ in self.world.parameters]
        for ways, rows in multiset_probabilities(len(self.draws), self.size):
            group = [self.draws[r] for r in rows]
            chance = ways * sp.prod([self.probs[r] for r in rows])
            for i, (_, y) in enumerate(group):
                share = chance * coefficient(group, i)
                for k, s in enumerate(self.scores[y]):
                    if s != 0 and share != 0:
                        total[k].append(share * s)
        return [sp.Add(*terms) for terms in total]

    def single(self, factor: Callable[[Draw], Any]) -> list[sp.Expr]:
        """E[factor s] of one response."""
        total: list[list[sp.Expr]] = [[] for _ in self.world.parameters]
        for draw, p in zip(self.draws, self.probs, strict=True):
            share = p * factor(draw)
            for k, s in enumerate(self.scores[draw[1]]):
                total[k].append(share * s)
        return [sp.Add(*terms) for terms in total]

    def mean(self, factor: Callable[[Draw], Any]) -> sp.Expr:
        """E[factor] of one response."""
        return sp.Add(*[p * factor(draw) for draw, p in zip(self.draws, self.probs, strict=True)])

    def reward(self, draw: Draw) -> sp.Expr:
        """Terminal reward."""
        return self.world.reward(draw[1])

    def weight(self, draw: Draw) -> sp.Expr:
        """Full product of the response's ratios, in the ratio symbols."""
        return self.world.weight(draw[1], draw[0])


def derived_if_small(
    group: Any, derivation: Callable[[tuple[Any, ...], int], Derivation], limit: int = SYMBOLIC
) -> Derivation:
    """Return the derivation of the group's shape and size, or one without steps where symbols would take seconds.

    Groups above the limit are decided by enumeration alone.
    """
    shape, size = group.world.shape, group.size
    w = symbolic_world(shape)
    if comb(len(w.leaves) * len(w.branches) + size - 1, size) * len(w.parameters) <= limit:
        return derivation(shape, size)
    return Derivation((), w.point, lambda group: w.bind(group.world))
