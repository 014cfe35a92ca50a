"""Worlds whose target has shared parameters, such as one softmax for every prefix, so that the scores of a response add up.

A tabular target has a block per prefix and no two positions ever meet in one parameter; what holds for it because of that
must be tried here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from testbed.core.batch import SegmentedBatch
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.policies.base import Policy
from testbed.policies.markov import MarkovPolicy
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, Schedule, one
from testbed.policies.tabular import TabularPolicy
from theory.worlds import World


@dataclass(frozen=True, kw_only=True)
class SharedWorld:
    """An instance like `theory.worlds.World` whose target has parameters that several prefixes share."""

    name: str
    env: PrefixTree
    target: Policy
    schedule: Schedule

    @cached_property
    def law(self) -> ExactLaw:
        """Law of the sampler, with what it recorded."""
        return enumerate_law(self.env, self.target, self.schedule)

    @cached_property
    def target_law(self) -> ExactLaw:
        """Law of on-policy responses."""
        return enumerate_law(self.env, self.target, self.target)

    def as_tabular(self) -> World:
        """The same laws with a row per prefix, for what does not depend on whether parameters are shared."""
        v, t = self.env.vocab_size, self.env.horizon
        realized = self.schedule.branches()

        def table(policy: Policy) -> TabularPolicy:
            return TabularPolicy(PrefixSchedule((policy,), one()).log_prob_table(v, t))

        mus = tuple(table(p) for p in realized[0][1].policies)
        branches = [(prob, PrefixSchedule(mus, s.segment_of)) for prob, s in realized]
        return World(name=self.name, env=self.env, target=table(self.target), schedule=ExogenousSchedule(branches))

    @property
    def batch(self) -> SegmentedBatch:
        """All responses of the sampler."""
        return self.law.batch


def independent_tokens(probs: list[float]) -> MarkovPolicy:
    """A policy with one state: the same law at every position, one softmax for all.

    Examples
    --------
    >>> independent_tokens([0.8, 0.2]).next_log_probs(torch.tensor([[0, 1]])).exp()
    tensor([[0.8000, 0.2000]], dtype=torch.float64)
    """
    return MarkovPolicy.from_probs(
        torch.tensor([probs], dtype=torch.float64), torch.zeros(1, len(probs), dtype=torch.int64)
    )
