"""Seconds of each phase of a training step, rule by rule, on one batch that every rule is given.

A step is taken apart as in Table 14 of the CIS paper: write the responses, score them again with the trainer, weigh, take
advantages, train. Rules take turns on the same batch, so that what else the machine does, and how long responses are, is the
same for all of them; the rate is so small that a hundred steps change no weight by a millionth of itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper_repro.cis_cost import FILE
from paper_repro.mismatch_weights import ARMS
from testbed.core.batch import SegmentedBatch
from testbed.core.records import RunRecord, provenance, require_writable
from testbed.core.seeds import SeedTree
from testbed.environments.tasks import make_task
from testbed.estimators.advantage import group_advantage
from testbed.estimators.loss import policy_loss
from testbed.training.engines import Engines
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import shape_of
from testbed.training.small_models import first_weights
from testbed.training.sources import OnPolicySource
from testbed.weighting.rules import weigh
from testbed.weighting.weights import Weights

REPEATS, RATE = 9, 1e-9
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"task": "sorting", "task_params": {"digits": 5, "base": 4}},
    "tiny, 4 experts": {"task": "sorting", "task_params": {"digits": 5, "base": 4}, "experts": 4},
    "wide": {
        "task": "worked_addition",
        "task_params": {"digits": 6},
        "width": 256,
        "layers": 4,
        "heads": 8,
        "hidden": 1024,
    },
}
SMALL: dict[str, dict[str, Any]] = {
    "tiny": {"task": "sorting", "task_params": {"digits": 2, "base": 2}, "width": 8, "layers": 1, "heads": 2, "hidden": 8,
             "prompts": 2, "responses": 2},
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds of one size: of the phases that no rule changes, and of those that it does, by arm; one number per repeat."""

    shared: dict[str, list[float]] = field(default_factory=dict)
    arms: dict[str, dict[str, list[float]]] = field(default_factory=dict)


class Bench:
    """A model, the batch it wrote, and the phases of a step on it.

    Parameters
    ----------
    settings : mapping    fields of GRPOConfig; weights are random, noise on the sampler is the paper's
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.config = config = GRPOConfig.of({**settings, "rate": RATE, "warm_steps": 0, "noise": "moe"})
        task = make_task(config.task, **config.task_params)
        self.model = first_weights(shape_of(config, task), 0)
        engines, seed = Engines(config, task, SeedTree("cost")), SeedTree("cost")["source"]
        self.policy = engines.trainer(self.model)
        prompts = torch.arange(min(task.n_prompts, 500))
        plain = Engines(GRPOConfig.of({**config.plain(), "noise": ""}), task, SeedTree("cost"))
        self.timed = OnPolicySource(
            config, task, plain.sampler(self.model.copy(), 0), prompts, seed
        )  # as fast as it is
        self.batch = self.rescored(
            OnPolicySource(config, task, engines.sampler(self.model.copy(), 0), prompts, seed).next_batch().batch
        )
        self.advantage = self.advantages()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=config.betas, weight_decay=0.0)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.model.parameters())

    def rescored(self, batch: SegmentedBatch) -> SegmentedBatch:
        """Score a batch with the trainer before the update."""
        with torch.no_grad():
            logp = self.policy.at(batch.group).score(batch.tokens)
        logp = torch.where(batch.mask, logp, 0.0).to(batch.logp_behavior.dtype)
        return batch.replaced(logp_target=logp, logp_proximal=logp)

    def advantages(self) -> torch.Tensor:
        """Advantages of the batch."""
        return group_advantage(self.batch, self.config.baseline, self.config.scale)  # type: ignore[arg-type]

    def weights(self, rule: str, params: Mapping[str, Any]) -> Weights:
        """Weights of a rule on the batch."""
        return weigh(rule, self.batch, self.advantage, **params)

    def step(self, rule: str, params: Mapping[str, Any]) -> None:
        """Loss, gradient and optimizer step; the rule's weights are made within the loss."""
        logp = self.policy.at(self.batch.group).score(self.batch.tokens)
        loss = policy_loss(torch.where(self.batch.mask, logp, 0.0), self.batch, rule, self.advantage, **params)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def times(self, repeats: int, clock: Callable[[], float] = time.perf_counter) -> Times:
        """Time every phase `repeats` times after one unrecorded round; each repeat begins with another arm."""
        found, names = Times(), list(ARMS)

        def timed(into: dict[str, list[float]], phase: str, work: Callable[[], object]) -> None:
            started = clock()
            work()
            into.setdefault(phase, []).append(clock() - started)

        for repeat in range(-1, repeats):
            shared, arms = (found.shared, found.arms) if repeat >= 0 else ({}, {})
            timed(shared, "Rollout", self.timed.next_batch)
            timed(shared, "Rescore", lambda: self.rescored(self.batch))
            timed(shared, "Advantage", self.advantages)
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                rule, params = ARMS[name]
                into = arms.setdefault(name, {})
                timed(into, "Weights", partial(self.weights, rule, params))
                timed(into, "Train step", partial(self.step, rule, params))
        return found


def measured(sizes: Mapping[str, Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Times of every size, as plain values, with the machine's load before and after."""
    found = []
    for name, settings in sizes.items():
        before, bench = os.getloadavg()[0], Bench(settings)
        times = bench.times(repeats)
        counts: dict[str, Any] = {"parameters": bench.parameters, "responses": bench.batch.batch_size}
        counts["length"] = float(bench.batch.lengths.double().mean())
        arms = {arm: rounded(phases) for arm, phases in times.arms.items()}
        load = [round(before, 2), round(os.getloadavg()[0], 2)]
        own = {"size": name, "settings": dict(settings), "shared": rounded(times.shared), "arms": arms, "load": load}
        found.append(own | counts)
    return {"sizes": found, "repeats": repeats, "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def rounded(phases: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Seconds to the microsecond: a clock says no more.

    Examples
    --------
    >>> rounded({"Rollout": [0.12345678]})
    {'Rollout': [0.123457]}
    """
    return {name: [round(value, 6) for value in values] for name, values in phases.items()}


def measure_cost_and_write(out: Path, *, smoke: bool = False) -> Path:
    """Measure on one thread, as every run of a sweep has, and write `out`/FILE.

    Raises
    ------
    InputError   a folder that cannot be written to
    """
    path = require_writable(out / FILE)
    threads, header = torch.get_num_threads(), provenance()
    torch.set_num_threads(1)
    try:
        result = measured(SMALL if smoke else SIZES, 2 if smoke else REPEATS)
    finally:
        torch.set_num_threads(threads)
    return RunRecord(result=result, provenance=header).save(path)
