"""The asynchronous clock, watched from outside: when each token is drawn, who waits, and which weights drew what.

A chooser that looks at the clock whenever it is asked for tokens sees every decode step end; the deliveries say the rest.
The second half of this file finds the same numbers from those times and the rules of a `System`, without the clock.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from testbed.core.choices import RandomChooser
from testbed.environments import make_task
from testbed.policies.transformer import TransformerPolicy
from testbed.rollout.clock import Clock
from testbed.rollout.delivery import Delivery
from testbed.rollout.system import System
from testbed.rollout.systems import find_system
from testbed.training import small_config
from testbed.training.small_models import first_weights

GROUPS, SIZE, LONGEST, CLOSE = 3, 2, 12, 1e-9


class Stopwatch:
    """A chooser that notes (time, response, position) of every token."""

    def __init__(self, seed: int) -> None:
        self.inner, self.clock = RandomChooser(seed), None
        self.stamps: list[tuple[float, int, int]] = []

    def choose(self, probs: Any, key: Any = None) -> Any:
        """Draw; keys with a position below 0 are no tokens."""
        if self.clock is not None and key is not None:
            now = self.clock.time
            self.stamps += [(now, i, t) for i, t in key.tolist() if t >= 0]
        return self.inner.choose(probs, key)


@dataclass
class Timeline:
    """What happened: who drew when, what was delivered when, and what the clock itself counted."""

    system: System
    stamps: list[tuple[float, int, int]]
    taken: list[Delivery]
    over: float  # seconds until the last delivery
    engine_idle: float = 0.0
    trainer_idle: float = 0.0
    staleness: float = 0.0
    oldest: int = 0
    version: dict[tuple[int, int], int] = field(default_factory=dict)  # of every token that was delivered


@cache
def timeline(name: str, update_seconds: float, updates: int, seed: int = 0) -> Timeline:
    """Run a system with an untrained policy, whose responses are short or long by chance, for so many updates."""
    system = find_system(name, update_seconds=update_seconds)
    task = make_task("parity", bits=4, horizon=LONGEST)
    model = first_weights(small_config(task, width=16, layers=1), 0)
    prompts = task.prompts()
    policy = TransformerPolicy(model, task.prompt_tokens(prompts), task.prompt_lengths(prompts))
    watch = Stopwatch(seed)
    clock = watch.clock = Clock(system, task, policy, prompts, watch, groups=GROUPS, size=SIZE)  # type: ignore[assignment]
    taken: list[Delivery] = []
    with torch.no_grad():
        for _ in range(updates):
            taken.append(clock.next_batch())
            clock.updated(policy)
        found = Timeline(system, watch.stamps, taken, taken[-1].time)
        busy = sum(delivery.log["engine_busy"] for delivery in taken)
        found.engine_idle, found.trainer_idle = 1 - busy / found.over, clock.waiting_seconds / found.over
        ages = torch.cat([delivery.staleness[delivery.batch.mask] for delivery in taken])
        found.staleness, found.oldest = float(ages.double().mean()), int(ages.max())
        for delivery in taken:
            written, lengths = delivery.batch.require("version", "timeline"), delivery.batch.lengths.tolist()
            for row, response in enumerate(delivery.response.tolist()):
                found.version |= {(response, t): int(written[row, t]) for t in range(lengths[row])}
        clock.next_batch()  # so that a step which was under way has ended, and its tokens have their times
    return found


def step_lengths(found: Timeline) -> dict[float, float]:
    """End of every decode step -> how long it took, by how many tokens it wrote."""
    count: dict[float, int] = defaultdict(int)
    for time, _, _ in found.stamps:
        count[time] += 1
    return {time: found.system.step_seconds + found.system.response_seconds * n for time, n in count.items()}


# ------------------------------------------------------------------------------------------------ a second way
def by_hand(found: Timeline) -> tuple[float, float, float, int]:
    """Idle share of engine and trainer, mean and largest staleness, from the times of tokens and deliveries alone."""
    system, over = found.system, found.over
    busy = sum(max(0.0, min(end, over) - (end - length)) for end, length in step_lengths(found).items())
    work = (len(found.taken) - 1) * (system.update_seconds + system.push_seconds)
    ages = [update - version for (_, update), version in _versions(found).items()]
    return 1 - busy / over, 1 - work / over, sum(ages) / len(ages), max(ages)


def _versions(found: Timeline) -> dict[tuple[tuple[int, int], int], int]:
    """Version of each delivered token, (token, update it was used in) -> version: by which weights had arrived when."""
    system, lengths = found.system, step_lengths(found)
    arrived = [delivery.time + system.update_seconds + system.push_seconds for delivery in found.taken]
    begun = {(i, t): time - lengths[time] for time, i, t in found.stamps}
    out = {}
    behind = system.ahead or 0
    for update, delivery in enumerate(found.taken):
        for response, length in zip(delivery.response.tolist(), delivery.batch.lengths.tolist(), strict=True):
            for t in range(length):
                when = begun[response, 0 if system.push == "finish" else t]
                newest = sum(moment <= when + CLOSE for moment in arrived)
                out[(response, t), update] = max(0, update - behind) if system.pinned else newest
    return out
