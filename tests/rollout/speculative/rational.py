"""Verification rules once more, for one row and in fractions: from the papers' statements, without any code of the library.

A program draws through `choose(law) -> index`; `walk` runs it once per branch, so that laws are exact rationals.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import torch

from testbed import TabularPolicy

ZERO, ONE = Fraction(0), Fraction(1)
Run = tuple[int, ...]
Choose = Callable[[list[Fraction]], int]


class World:
    """Laws of a target and a drafter after every prefix of fewer than `horizon` tokens; zero probabilities are common."""

    def __init__(self, vocab_size: int, horizon: int, rng, kind: str = "random"):
        self.V, self.horizon, self.kind = vocab_size, horizon, kind
        self.p: dict[Run, list[Fraction]] = {}
        self.q: dict[Run, list[Fraction]] = {}
        for prefix in [h for t in range(horizon) for h in product(range(vocab_size), repeat=t)]:
            self.p[prefix], self.q[prefix] = self.pair(rng)

    def pair(self, rng):
        size, half = self.V, (self.V + 1) // 2
        if self.kind == "disjoint":  # nothing can be accepted
            return random_law(rng, half) + [ZERO] * (size - half), [ZERO] * half + random_law(rng, size - half)
        if self.kind == "equal":
            law = random_law(rng, size)
            return law, list(law)
        if self.kind == "drafter_knows_one":
            sure = int(rng.integers(size))
            return random_law(rng, size), [ONE if x == sure else ZERO for x in range(size)]
        if self.kind == "positive":
            return random_law(rng, size, least=1), random_law(rng, size, least=1)
        return random_law(rng, size), random_law(rng, size)

    def target(self, prefix: Run):
        return self.p[prefix]

    def drafter(self, prefix: Run):
        return self.q[prefix]

    def policies(self) -> tuple[TabularPolicy, TabularPolicy]:
        """The same laws for the library."""
        tables = ([[float(x) for x in law] for law in side.values()] for side in (self.p, self.q))
        p, q = (TabularPolicy.from_probs(torch.tensor(table, dtype=torch.float64)) for table in tables)
        return p, q


KINDS = ("random", "positive", "disjoint", "equal", "drafter_knows_one")


def random_law(rng, size: int, least: int = 0) -> list[Fraction]:
    while True:
        weights = [int(w) for w in rng.integers(least, 5, size)]
        if sum(weights):
            return [Fraction(w, sum(weights)) for w in weights]


def walk(program: Callable[[Choose], Run]) -> dict[Run, Fraction]:
    """Law of what a program returns."""
    law: dict[Run, Fraction] = {}
    script: list[int] = []
    while True:
        trail: list[list[int]] = []
        chance = [ONE]

        def choose(weights, script=script, trail=trail, chance=chance):
            assert sum(weights) == 1
            possible = [i for i, w in enumerate(weights) if w]
            index = script[len(trail)] if len(trail) < len(script) else possible[0]
            trail.append([index, *[i for i in possible if i > index]])
            chance[0] *= weights[index]
            return index

        result = program(choose)
        law[result] = law.get(result, ZERO) + chance[0]
        while trail and len(trail[-1]) == 1:
            trail.pop()
        if not trail:
            return law
        script = [options[0] for options in trail[:-1]] + [trail[-1][1]]


def heads(choose: Choose, chance: Fraction) -> bool:
    return choose([chance, 1 - chance]) == 0


def positive_part(p, q) -> tuple[list[Fraction], Fraction]:
    over = [max(a - b, ZERO) for a, b in zip(p, q, strict=True)]
    return over, sum(over)


def normalized(weights) -> list[Fraction]:
    total = sum(weights)
    return [w / total for w in weights]


# ------------------------------------------------------------------------------------------------ rules
def token_rejection(world: World, length: int, choose: Choose) -> Run:
    run: Run = ()
    for _ in range(length):
        p, q = world.p[run], world.q[run]
        x = choose(q)
        if not heads(choose, min(ONE, p[x] / q[x])):
            return (*run, choose(normalized(positive_part(p, q)[0])))
        run = (*run, x)
    return (*run, choose(world.p[run]))


def block(world: World, length: int, choose: Choose) -> Run:
    draft: Run = ()
    pi = [ONE]
    for _ in range(length):
        p, q = world.p[draft], world.q[draft]
        x = choose(q)
        pi.append(min(ONE, pi[-1] * p[x] / q[x]))
        draft = (*draft, x)
    if heads(choose, pi[length]):
        return (*draft, choose(world.p[draft]))
    for i in range(length - 1, -1, -1):
        p, q = world.p[draft[:i]], world.q[draft[:i]]
        over, mass = positive_part([pi[i] * a for a in p], q)
        h = mass / (mass + 1 - pi[i]) if mass + 1 - pi[i] else ZERO
        if i == 0 or heads(choose, h):
            return (*draft[:i], choose(normalized(over)))
    raise AssertionError


def rounds(world: World, branching, choose: Choose, distinct: bool) -> Run:
    """Multi-round rejection; children are drawn when they are tried, which their law does not notice."""
    run: Run = ()
    for children in branching:
        p, q = world.p[run], world.q[run]
        for _ in range(children):
            if not any(q):
                return (*run, choose(p))
            x = choose(q)
            if heads(choose, min(ONE, p[x] / q[x])):
                run = (*run, x)
                break
            p = normalized(positive_part(p, q)[0])
            q = drop(q, x) if distinct else q
        else:
            return (*run, choose(p))
    return (*run, choose(world.p[run]))


def drop(q, x: int):
    rest = [ZERO if i == x else w for i, w in enumerate(q)]
    return normalized(rest) if any(rest) else rest


def traversal(world: World, branching, choose: Choose, distinct: bool) -> Run:
    def subtree(path: Run, accept: Fraction) -> Run | None:
        p, q = world.p[path], world.q[path]
        for _ in range(branching[len(path)] if len(path) < len(branching) else 0):
            if not any(q):
                break
            x = choose(q)
            into = min(ONE, accept * p[x] / q[x])
            settled = subtree((*path, x), into)
            if settled is not None:
                return settled
            over, mass = positive_part([accept * a for a in p], q)
            if mass:
                p = normalized(over)
            accept = mass / (mass + 1 - accept) if mass + 1 - accept else ZERO
            q = drop(q, x) if distinct else q
        return (*path, choose(p)) if path == () or heads(choose, accept) else None

    settled = subtree((), ONE)
    assert settled is not None
    return settled


def membership(world: World, tree: dict[Run, list[int]], choose: Choose) -> Run:
    run: Run = ()
    while True:
        x = choose(world.p[run])
        if x not in tree.get(run, []):
            return (*run, x)
        run = (*run, x)


def point_mass(world: World, tree: dict[Run, list[int]], choose: Choose) -> Run:
    run: Run = ()
    while True:
        p = world.p[run]
        for x in tree.get(run, []):
            if heads(choose, p[x]):
                run = (*run, x)
                break
            p = drop(p, x)
        else:
            return (*run, choose(p))


# ------------------------------------------------------------------------------------------------ laws
def completed(emitted: dict[Run, Fraction], world: World, length: int) -> dict[Run, Fraction]:
    """Law of the first `length` tokens when the target goes on alone."""
    law = dict.fromkeys(product(range(world.V), repeat=length), ZERO)
    for run, chance in emitted.items():
        for rest in product(range(world.V), repeat=max(0, length - len(run))):
            law[(*run, *rest)[:length]] += chance * path_chance(world, (*run, *rest)[:length], start=len(run))
    return law


def target_law(world: World, length: int) -> dict[Run, Fraction]:
    return {y: path_chance(world, y) for y in product(range(world.V), repeat=length)}


def path_chance(world: World, run: Run, start: int = 0) -> Fraction:
    chance = ONE
    for t in range(start, len(run)):
        chance *= world.p[run[:t]][run[t]]
    return chance


def mean_accepted(emitted: dict[Run, Fraction]) -> Fraction:
    return sum(((len(run) - 1) * chance for run, chance in emitted.items()), ZERO)


def random_tree(world: World, rng, depth: int) -> dict[Run, list[int]]:
    """A tree of distinct siblings, some of which the target may find impossible."""
    tree: dict[Run, list[int]] = {}
    level: list[Run] = [()]
    for _ in range(depth):
        for node in level:
            tree[node] = [int(x) for x in rng.permutation(world.V)[: rng.integers(0, world.V + 1)]]
        level = [(*node, x) for node in level for x in tree[node]]
    return tree


def flattened(tree: dict[Run, list[int]]) -> tuple[list[int], list[int]]:
    """Tokens and parents of a tree, parents first."""
    place: dict[Run, int] = {(): -1}
    tokens: list[int] = []
    parent: list[int] = []
    for node in sorted(tree, key=len):
        for x in tree[node]:
            place[(*node, x)] = len(tokens)
            tokens.append(x)
            parent.append(place[node])
    return tokens, parent
