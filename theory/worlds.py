"""Numeric worlds: an environment, a target and a schedule of behaviors, small enough to enumerate.

`standard_worlds` is the instance set most theorems share. It includes the degenerate cases on purpose: one token, one segment,
behavior equal to target, a deterministic target, a segment without tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.policies.schedule import (
    PrefixSchedule,
    Schedule,
    SegmentOf,
    after_token,
    cuts,
    exogenous_hazard,
    one,
)
from testbed.policies.tabular import TabularPolicy

STREAM = SeedTree("theory instances")


@dataclass(frozen=True, kw_only=True)
class World:
    """One instance: who is the target, who draws, what is rewarded.

    `sampler`, if given, builds the law instead of `enumerate_law`: for samplers that violate a hypothesis.
    """

    name: str
    env: PrefixTree
    target: TabularPolicy
    schedule: Schedule
    sampler: Callable[[World], ExactLaw] | None = None

    @cached_property
    def law(self) -> ExactLaw:
        """Law of the sampler, with what it recorded."""
        return self.sampler(self) if self.sampler else enumerate_law(self.env, self.target, self.schedule)

    @cached_property
    def target_law(self) -> ExactLaw:
        """Law of on-policy responses."""
        return enumerate_law(self.env, self.target, self.target)

    @property
    def batch(self) -> SegmentedBatch:
        """All responses of the sampler."""
        return self.law.batch

    @cached_property
    def behaviors(self) -> tuple[Any, ...]:
        """Behavior policies (shared by all branches)."""
        return self.schedule.branches()[0][1].policies

    @property
    def shape(self) -> tuple[Any, ...]:
        """What a symbolic world of the same form needs: V, T, eos, number of behaviors, segment table of each branch."""
        v, t = self.env.vocab_size, self.env.horizon
        tables = tuple(tuple(s.segment_table(v, t).tolist()) for _, s in self.schedule.branches())
        return v, t, self.env.eos, len(self.behaviors), tables, self.env.token_rewards is not None


def world(
    name: str,
    vocab_size: int,
    horizon: int,
    segment_of: SegmentOf | None = None,
    behaviors: int = 2,
    *,
    eos: int | None = None,
    hazard: float | None = None,
    target: TabularPolicy | None = None,
    policies: tuple[TabularPolicy, ...] | None = None,
    binary: bool = False,
    step_rewards: bool = False,
    rewards: Any = None,
    scale: float = 1.0,
) -> World:
    """Build a world with random policies and rewards, addressed by its name (the same name gives the same numbers)."""
    stream = STREAM[name]
    pi = target or TabularPolicy.random(vocab_size, horizon, stream["target"], scale)
    mus = policies or tuple(
        TabularPolicy.random(vocab_size, horizon, stream[f"behavior {k}"], scale) for k in range(behaviors)
    )
    env = PrefixTree.random(vocab_size, horizon, stream["env"], eos, binary)
    if rewards is not None:
        env = PrefixTree(vocab_size, horizon, rewards, eos)
    if step_rewards:
        noise = torch.rand(pi.logits.shape, generator=stream["steps"].torch_generator(), dtype=torch.float64)
        env = PrefixTree(vocab_size, horizon, torch.zeros_like(env.rewards), eos, token_rewards=2 * noise - 1)
    schedule: Schedule = (
        exogenous_hazard(mus, hazard, horizon) if hazard is not None else PrefixSchedule(mus, segment_of or one())
    )
    return World(name=name, env=env, target=pi, schedule=schedule)


def one_hot_policy(vocab_size: int, horizon: int, name: str) -> TabularPolicy:
    """A deterministic policy: one token allowed after every prefix."""
    logits = TabularPolicy.random(vocab_size, horizon, STREAM[name]["one hot"]).logits
    best = logits.argmax(-1, keepdim=True)
    return TabularPolicy(torch.full_like(logits, float("-inf")).scatter(1, best, 0.0))


def standard_worlds(**options: Any) -> list[World]:
    """Build the shared instances: two generic worlds, stopping-time, end-token and exogenous ones, and the degenerate cases.

    `options` are passed to `world` (for instance `binary=True`, `step_rewards=True`).
    """
    mu = TabularPolicy.random(2, 3, STREAM["on_policy"]["target"])
    return [
        world("two_segments", 2, 2, cuts((1,)), **options),
        world("three_segments", 2, 3, cuts((1, 2)), behaviors=3, **options),
        world("stopping_time", 2, 3, after_token(1), **options),
        world("three_tokens", 3, 2, cuts((1,)), **options),
        world("end_token", 3, 3, after_token(1), eos=2, **options),
        world("exogenous_boundary", 2, 3, hazard=0.3, **options),
        world("one_token", 3, 1, one(), behaviors=1, **options),
        world("one_segment", 2, 3, one(), behaviors=1, **options),
        world("on_policy", 2, 3, cuts((1,)), target=mu, policies=(mu, mu), **options),
        world("deterministic_target", 2, 3, cuts((1,)), target=one_hot_policy(2, 3, "deterministic"), **options),
        world("empty_segment", 2, 3, lambda prefix: 2 * (len(prefix) >= 1), behaviors=3, **options),
    ]
