"""Worlds whose target is a small transformer: every response enumerated, every law and every gradient that of the network.

Behaviors are what stale or differently computed rollouts come from: earlier checkpoints of the same training run, seen
through the decoder that would have drawn, and the target with noise on its logits. Weights and checkpoints are built once
per process; laws are enumerated anew for every world, so that nothing computed under a planted bug survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from testbed.core.prefix_order import node_count
from testbed.core.seeds import SeedTree
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import response_table
from testbed.policies.base import Policy
from testbed.policies.families import steps_behind
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.student import StudentT
from testbed.policies.perturbed import perturb
from testbed.policies.schedule import PrefixSchedule, Schedule, SegmentOf, after_token, cuts, exogenous_hazard
from testbed.policies.transformer.checkpoints import steps
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.stepwise import StepwisePolicy
from theory.shared_worlds import SharedWorld

STREAM = SeedTree("transformer instances")
SHARPNESS = 1.0  # standard deviation of the first checkpoint's logits, about
STEP = 0.25  # distance of consecutive checkpoints
NOISES: dict[str, NoiseLaw] = {"gaussian": Gaussian(0.6), "student": StudentT(0.4, df=4.0)}
PREFIX = "transformer_"
SIZES: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2}


@dataclass(frozen=True)
class Task:
    """What a model is trained on: its tree of responses, and the shape of the model."""

    name: str
    vocab_size: int
    horizon: int
    eos: int | None = None
    experts: int = 0
    step_rewards: bool = False

    @property
    def env(self) -> PrefixTree:
        """Random rewards in [-1, 1], of whole responses or of every token."""
        tree = PrefixTree.random(self.vocab_size, self.horizon, STREAM[self.name]["env"], self.eos)
        if not self.step_rewards:
            return tree
        nodes = node_count(self.vocab_size, self.horizon)
        u = torch.rand(
            nodes, self.vocab_size, generator=STREAM[self.name]["steps"].torch_generator(), dtype=torch.float64
        )
        return PrefixTree(self.vocab_size, self.horizon, torch.zeros_like(tree.rewards), self.eos, 2 * u - 1)

    @property
    def config(self) -> TransformerConfig:
        """Two layers; dense, or two of eight small experts per token."""
        return TransformerConfig(
            vocab_size=self.vocab_size, hidden=2 if self.experts else 4, experts=self.experts, context=8, **SIZES
        )


DENSE = Task("dense", 3, 3, eos=2)
EXPERTS = Task("experts", 4, 3, experts=8)
WIDE = Task("wide", 5, 4)
SHORT = Task("short", 3, 2, eos=2)
STEPS = Task("steps", 3, 3, eos=2, step_rewards=True)


@lru_cache(maxsize=8)
def checkpoints(task: Task) -> tuple[Transformer, ...]:
    """Models along a few steps of exact policy-gradient ascent on the task, oldest first."""
    env = task.env
    tokens, mask = response_table(env)
    reward = env.reward(tokens, mask, torch.zeros(len(tokens), dtype=torch.int64))

    def loss(model: Transformer) -> Tensor:
        score = torch.where(mask, TransformerPolicy(model).score(tokens), 0.0)
        return -(score.sum(1).exp() * reward).sum()

    start = Transformer.random(task.config, STREAM[task.name]["weights"], sharpness=SHARPNESS)
    return tuple(steps(start, loss, count=3, rate=STEP, normalized=True))


@dataclass(frozen=True, kw_only=True)
class TransformerWorld(SharedWorld):
    """An instance like `theory.worlds.World` whose target is a transformer."""

    target: TransformerPolicy

    @cached_property
    def behaviors(self) -> tuple[Policy, ...]:
        """Behavior policies (shared by all branches)."""
        return self.schedule.branches()[0][1].policies


def behavior(task: Task, kind: str) -> Policy:
    """Return a behavior: "stale" and "staler" are earlier checkpoints, "gaussian" and "student" noise on the target's logits.

    Examples
    --------
    >>> type(behavior(DENSE, "stale")).__name__, type(behavior(DENSE, "student")).__name__
    ('StepwisePolicy', 'Perturbed')
    """
    line = checkpoints(task)
    target = TransformerPolicy(line[-1])
    if kind == "target":
        return target
    if kind in NOISES:
        return perturb(target, NOISES[kind], STREAM[task.name][kind])
    return StepwisePolicy(TransformerPolicy(steps_behind(line, {"stale": 1, "staler": 3}[kind])))


def transformer_world(
    name: str,
    task: Task,
    kinds: tuple[str, ...],
    segment_of: SegmentOf | None = None,
    hazard: float | None = None,
) -> TransformerWorld:
    """Build a world: the last checkpoint as the target, behaviors by kind, boundaries by rule or at random times.

    Examples
    --------
    >>> w = transformer_world("example", SHORT, ("stale", "gaussian"), cuts((1,)))
    >>> w.name, w.batch.batch_size, round(float(w.law.probs.sum()), 12)
    ('transformer_example', 7, 1.0)
    """
    policies = [behavior(task, kind) for kind in kinds]
    schedule: Schedule
    if hazard is not None:
        schedule = exogenous_hazard(policies, hazard, task.horizon)
    else:
        schedule = PrefixSchedule(policies, segment_of or cuts((1,)))
    return TransformerWorld(
        name=PREFIX + name, env=task.env, target=TransformerPolicy(checkpoints(task)[-1]), schedule=schedule
    )


def dense_world() -> TransformerWorld:
    """Three tokens, three positions, an end token: a stale start, continued with Gaussian noise."""
    return transformer_world("dense", DENSE, ("staler", "gaussian"), cuts((1,)))


def expert_world() -> TransformerWorld:
    """A mixture of experts on four tokens: Student-t noise until token 1 is drawn, an earlier checkpoint afterwards."""
    return transformer_world("experts", EXPERTS, ("student", "staler"), after_token(1))


def hazard_world() -> TransformerWorld:
    """The dense model, continued by another behavior from a random position on."""
    return transformer_world("hazard", DENSE, ("student", "stale"), hazard=0.3)


def step_reward_world() -> TransformerWorld:
    """A dense model rewarded token by token: a stale start, continued with Gaussian noise."""
    return transformer_world("steps", STEPS, ("staler", "gaussian"), cuts((1,)))


def short_world() -> TransformerWorld:
    """Two positions, seven responses: a stale start, continued with Student-t noise."""
    return transformer_world("short", SHORT, ("staler", "student"), cuts((1,)))


def wide_world() -> TransformerWorld:
    """Five tokens, four positions, 625 responses: two stale tokens, then Gaussian noise."""
    return transformer_world("wide", WIDE, ("staler", "gaussian"), cuts((2,)))


def transformer_worlds(wide: bool = False) -> list[TransformerWorld]:
    """Dense, mixture of experts, random boundaries; and, if asked for, the wide one.

    Examples
    --------
    >>> [w.batch.batch_size for w in transformer_worlds(wide=True)]
    [15, 64, 60, 625]
    """
    return [dense_world(), expert_world(), hazard_world(), *([wide_world()] if wide else [])]
