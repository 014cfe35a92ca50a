"""Subjects of the speculation benchmark: a transformer warmed up on a task here, heads taught on its own samples, pass times.

Every sum of the task is worked out column by column, which gives responses of a few dozen tokens, some foreseeable and some
not. How far the warm start goes decides how many drafts are accepted; the benchmark prints that number beside the speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch

from testbed.core.choices import RandomChooser
from testbed.environments.worked_addition import WorkedAddition
from testbed.policies.transformer import TransformerPolicy
from testbed.rollout import rollout
from testbed.rollout.speculative import (
    Drafter,
    FutureHeads,
    HeadDrafter,
    HeadRecipe,
    measured_peak,
    pass_seconds,
    speculative_rollout,
    teach_heads,
)
from testbed.rollout.speculative.rounds import Round
from testbed.training.recipe import Recipe
from testbed.training.small_models import first_weights, small_config
from testbed.training.supervised import WarmStart

MOST_NODES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model's sizes, and how long it and its heads are taught."""

    digits: int
    width: int
    layers: int
    heads: int
    hidden: int
    recipe: Recipe
    samples: int
    heads_recipe: HeadRecipe
    active: tuple[int, ...]


SIZES = {
    "1M": Size(
        digits=6, width=128, layers=4, heads=4, hidden=384, recipe=Recipe(steps=400, batch=64), samples=512,
        heads_recipe=HeadRecipe(steps=200, batch=64), active=(1, 8, 32, 64),
    ),
    "11M": Size(
        digits=6, width=384, layers=6, heads=6, hidden=1024, recipe=Recipe(steps=150, batch=32, rate=1e-3), samples=256,
        heads_recipe=HeadRecipe(steps=150, batch=64), active=(1, 8, 32, 64),
    ),
    "tiny": Size(
        digits=2, width=16, layers=1, heads=2, hidden=16, recipe=Recipe(steps=3, batch=8), samples=8,
        heads_recipe=HeadRecipe(steps=2, batch=8), active=(1, 3),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A task, a policy that has learned something of it, its heads, and this machine's times for its passes and drafts."""

    task: WorkedAddition
    policy: TransformerPolicy
    heads: FutureHeads
    seconds: dict[int, list[float]]
    peak: int
    drafting: float

    def drafter(self) -> Drafter:
        """Drafts of the heads."""
        return HeadDrafter(self.heads)


@cache
def subject(name: str) -> Subject:
    """Warm a model up, teach its heads, and time its passes."""
    size = SIZES[name]
    task = WorkedAddition(digits=size.digits)
    config = small_config(task, width=size.width, layers=size.layers, heads=size.heads, hidden=size.hidden)
    run = WarmStart(first_weights(config, 0), task, task.prompts(), size.recipe, 0)
    for _ in range(size.recipe.steps):
        run.advance()
    policy, heads = run.policy, FutureHeads.of(run.policy)
    group = task.sample_prompts(size.samples, 1)
    batch = rollout(task, policy, size.samples, RandomChooser(0), group=group)
    teach_heads(heads, policy, batch, size.heads_recipe)
    unconditioned = TransformerPolicy(run.model, policy.prompts.tokens[:1, 1:], numerics=policy.numerics)
    seconds = pass_seconds(unconditioned, size.active, MOST_NODES)
    made = {"task": task, "policy": policy, "heads": heads, "seconds": seconds, "peak": measured_peak(seconds)}
    return Subject(**made, drafting=draft_seconds(task, policy, HeadDrafter(heads)))


def draft_seconds(task: WorkedAddition, policy: TransformerPolicy, drafter: Drafter, repeats: int = 20) -> float:
    """Fastest of several drafts for eight responses."""
    seen: list[Round] = []
    group = task.sample_prompts(8, 2)
    speculative_rollout(
        task, policy, 8, RandomChooser(0), group=group, watch=seen.append, max_tokens=torch.full((8,), 2)
    )
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        drafter.draft(seen[0].frontier, MOST_NODES)
        best = min(best, time.perf_counter() - started)
    return best
