"""Groups over symbols: all multisets of M draws of a symbolic world with their probabilities, and sums over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import sympy as sp

from theory.symbols import Prefix, SymbolicWorld

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
    """Groups of M responses of a symbolic world, drawn by its sampler or on-policy.

    With `kept` the draws of these numbers only, by the law given that it is one of them. With `short` the probability and
    the weight of a draw are symbols of their own, which `shorthand` binds: sums over many groups stay short.
    """

    def __init__(
        self,
        world: SymbolicWorld,
        size: int,
        on_policy: bool = False,
        kept: Sequence[int] | None = None,
        short: bool = False,
    ) -> None:
        self.world, self.size = world, size
        draws = [(0, y, world.prob_pi(y)) for y in world.leaves] if on_policy else world.draws()
        chosen = draws if kept is None else [draws[k] for k in kept]
        total = sp.Integer(1) if len(chosen) == len(draws) else sp.Add(*[p for _, _, p in chosen])
        self.draws: list[Draw] = [(xi, y) for xi, y, _ in chosen]
        self.probs = [p / total for _, _, p in chosen]
        self.scores = {y: self.score(y) for y in world.leaves}
        self._rewards = {y: world.reward(y) for y in world.leaves}
        self._weights = {d: world.weight(d[1], d[0]) for d in self.draws}
        self.shorthand: dict[sp.Symbol, sp.Expr] = {}
        if short:
            names = [f"{xi}_{''.join(map(str, y))}" for xi, y in self.draws]
            probs = [sp.Symbol(f"P{n}", positive=True) for n in names]
            weights = [sp.Symbol(f"W{n}", positive=True) for n in names]
            meant = [*self.probs, *self._weights.values()]
            self.shorthand = dict(zip([*probs, *weights], meant, strict=True))
            self.probs, self._weights = probs, dict(zip(self.draws, weights, strict=True))

    def score(self, y: Prefix) -> list[sp.Expr]:
        """Score of a whole response, one component per logit."""
        w = self.world
        return [sp.Add(*[w.score(y, t, h, b) for t in range(len(y))]) for h, b in w.parameters]

    def named(self, values: Mapping[sp.Symbol, Any], evaluate: Callable[..., Sequence[Any]]) -> dict[sp.Symbol, Any]:
        """Return the values of a world's symbols with those of the short ones; `evaluate` as in `theory.evaluation`."""
        found = evaluate(list(self.shorthand.values()), values)
        return {**values, **dict(zip(self.shorthand, found, strict=True))}

    def update(self, coefficient: Coefficient) -> list[sp.Expr]:
        """E[sum_i coefficient(group, i) s_i], summed over all groups; what multiplies the score of a response is collected."""
        found: dict[Prefix, list[sp.Expr]] = {y: [] for y in self.scores}
        for ways, rows in multiset_probabilities(len(self.draws), self.size):
            group = [self.draws[r] for r in rows]
            chance = ways * sp.prod([self.probs[r] for r in rows])
            for i, (_, y) in enumerate(group):
                found[y].append(chance * coefficient(group, i))
        return self.along_scores(found)

    def along_scores(self, terms: Mapping[Prefix, Sequence[sp.Expr]]) -> list[sp.Expr]:
        """Sum over the responses of what multiplies a score, times the score, one component per logit."""
        pairs = [(f, self.scores[y]) for y, found in terms.items() if (f := sp.Add(*found)) != 0]
        return [sp.Add(*[f * s[k] for f, s in pairs if s[k] != 0]) for k in range(len(self.world.parameters))]

    def single(self, factor: Callable[[Draw], Any]) -> list[sp.Expr]:
        """E[factor s] of one response."""
        found: dict[Prefix, list[sp.Expr]] = {y: [] for y in self.scores}
        for draw, p in zip(self.draws, self.probs, strict=True):
            found[draw[1]].append(p * factor(draw))
        return self.along_scores(found)

    def groups(self, statistic: Callable[[list[Draw]], Any], size: int | None = None) -> sp.Expr:
        """E[statistic] of a group, summed over all groups of M (or of `size`)."""
        return sp.Add(*[
            ways * sp.prod([self.probs[r] for r in rows]) * statistic([self.draws[r] for r in rows])
            for ways, rows in multiset_probabilities(len(self.draws), self.size if size is None else size)
        ])  # fmt: skip

    def companions(self, statistic: Callable[[list[Draw]], Any]) -> sp.Expr:
        """E[statistic] of the other M - 1 responses of a group."""
        return self.groups(statistic, self.size - 1)

    def mean(self, factor: Callable[[Draw], Any]) -> sp.Expr:
        """E[factor] of one response."""
        return sp.Add(*[p * factor(draw) for draw, p in zip(self.draws, self.probs, strict=True)])

    def reward(self, draw: Draw) -> sp.Expr:
        """Terminal reward."""
        return self._rewards[draw[1]]

    def weight(self, draw: Draw) -> sp.Expr:
        """Full product of the response's ratios, in the ratio symbols."""
        return self._weights[draw]
