"""The most tokens that any exact verifier can accept on a tree that was not drawn, as a linear program over its round's law."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import linprog

from theory.draft_rounds import RoundCase

Run = tuple[int, ...]


def tree_paths(case: RoundCase) -> list[Run]:
    """The nodes of the case's tree as paths of tokens, the root first."""
    tokens, parent = case.tree
    paths: list[Run] = []
    for token, up in zip(tokens, parent, strict=True):
        paths.append((*(paths[up] if up >= 0 else ()), token))
    return [(), *paths]


def most_accepted(case: RoundCase) -> float:
    """Maximum of E tau over all laws of a round that are exact.

    A round emits the path of a node and one token more; variables are the probabilities of these runs. Exact: continued by the
    target, the first tokens have the target's law, for each response one equation.
    """
    runs = [(*path, x) for path in tree_paths(case) for x in range(case.vocab_size)]
    responses = list(product(range(case.vocab_size), repeat=case.horizon))
    index = {y: i for i, y in enumerate(responses)}
    goes_on = np.zeros((len(responses), len(runs)))
    for column, run in enumerate(runs):
        for rest in product(range(case.vocab_size), repeat=case.horizon - len(run)):
            y = (*run, *rest)
            goes_on[index[y], column] = chance(case, y, start=len(run))
    accepted = np.array([len(run) - 1 for run in runs], dtype=np.float64)
    target = np.array([chance(case, y) for y in responses])
    found = linprog(-accepted, A_eq=goes_on, b_eq=target, bounds=(0, None), method="highs-ds")
    return float(-found.fun)


def chance(case: RoundCase, run: Run, start: int = 0) -> float:
    """Target's probability of a run, given its first `start` tokens."""
    result = 1.0
    for t in range(start, len(run)):
        result *= case.p(run[:t])[run[t]]
    return result


def expected_prefix(case: RoundCase) -> float:
    """Expected length of the longest prefix of a response that lies in the tree."""
    nodes = set(tree_paths(case))
    depth = len(case.branching)
    total = 0.0
    for y in product(range(case.vocab_size), repeat=depth):
        inside = [t for t in range(depth + 1) if y[:t] in nodes]
        total += chance(case, y) * max(inside)
    return total
