"""Instances of one speculative round: a target, a drafter, a shape of drafts, and the exact law of what a verifier emits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from testbed.core.prefix_order import node_count
from testbed.policies.tabular import TabularPolicy
from testbed.rollout.speculative.verify.drawing import shape_of
from testbed.rollout.speculative.verify.enumeration import (
    Drafts,
    RoundLaw,
    all_drafts,
    every_response,
    one_draft,
    response_law,
    round_law,
)
from testbed.rollout.speculative.verify.protocol import Verifier
from theory.worlds import STREAM

TOY = (0.4, 0.3, 0.2, 0.1)  # the drafter's law is the same backwards


@dataclass(frozen=True, kw_only=True)
class RoundCase:
    """One round from the start of a response.

    Parameters
    ----------
    name : str
    target, drafter : TabularPolicy   laws after every prefix of up to len(branching) tokens
    branching : tuple of int          children of each node at depth 0, 1, ...
    """

    name: str
    target: TabularPolicy
    drafter: TabularPolicy
    branching: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.target.vocab_size

    @property
    def horizon(self) -> int:
        """Most tokens that a round emits."""
        return len(self.branching) + 1

    @cached_property
    def drawn(self) -> Drafts:
        """Drafts whose siblings are independent."""
        return all_drafts(self.target, self.drafter, self.branching)

    @cached_property
    def distinct(self) -> Drafts:
        """Drafts whose siblings are drawn without replacement."""
        return all_drafts(self.target, self.drafter, self.branching, distinct=True)

    @cached_property
    def chains(self) -> Drafts:
        """Drafts of one child per node."""
        return all_drafts(self.target, self.drafter, (1,) * len(self.branching))

    @cached_property
    def tree(self) -> tuple[list[int], list[int]]:
        """Tokens and parents of a tree that is not drawn: the children of every node are the drafter's favorites."""
        parent, _ = shape_of(self.branching)
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        tokens: list[int] = []
        for place, up in enumerate(parent):
            rank = sum(other == up for other in parent[:place])
            tokens.append(sorted(range(self.vocab_size), key=lambda x: -self.q(paths[up])[x])[rank])
            paths[place] = (*paths[up], tokens[-1])
        return tokens, parent

    @cached_property
    def chosen(self) -> Drafts:
        """That tree, as the only draft."""
        return one_draft(self.target, *self.tree)

    def p(self, prefix: tuple[int, ...]) -> list[float]:
        """Target's law after a prefix."""
        return _law(self.target, prefix)

    def q(self, prefix: tuple[int, ...]) -> list[float]:
        """Drafter's law after a prefix."""
        return _law(self.drafter, prefix)

    def target_law(self, length: int | None = None) -> Tensor:
        """Target's law of the first tokens, by default of as many as a round may emit."""
        return response_law(self.target, length or self.horizon)

    def emits(self, rule: Verifier, drafts: Drafts) -> RoundLaw:
        """Exact law of what a rule emits."""
        return round_law(rule, drafts)

    def by_run(self, law: RoundLaw) -> list[float]:
        """Probability of each run of up to `horizon` tokens, by length, then lexicographically."""
        runs = [tuple(run) for t in range(1, self.horizon + 1) for run in every_response(self.vocab_size, t).tolist()]
        return [law.emitted.get(run, 0.0) for run in runs]


def _law(policy: TabularPolicy, prefix: tuple[int, ...]) -> list[float]:
    return policy.next_log_probs(torch.tensor([prefix], dtype=torch.int64)).exp()[0].tolist()


def always(law: Sequence[Any], horizon: int) -> TabularPolicy:
    """The same law after every prefix."""
    row = torch.tensor([float(x) for x in law], dtype=torch.float64)
    return TabularPolicy.from_probs(row.repeat(node_count(len(row), horizon), 1))


def constant(name: str, p: Sequence[Any], q: Sequence[Any], branching: tuple[int, ...]) -> RoundCase:
    """Build a case whose laws are the same after every prefix."""
    horizon = len(branching) + 1
    return RoundCase(name=name, target=always(p, horizon), drafter=always(q, horizon), branching=branching)


def varied(name: str, vocab_size: int, branching: tuple[int, ...]) -> RoundCase:
    """Build a case whose laws differ after every prefix."""
    horizon = len(branching) + 1
    target, drafter = (TabularPolicy.random(vocab_size, horizon, STREAM[name][side]) for side in ("target", "drafter"))
    return RoundCase(name=name, target=target, drafter=drafter, branching=branching)
