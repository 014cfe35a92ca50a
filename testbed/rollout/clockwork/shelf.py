"""What the clock replays: a buffer of responses that were taken before, and how many of each batch come from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.replay import ReplayBuffer, Stored, replay_counts
from testbed.rollout.system import System

SUCCESS = 1.0  # the least reward of a response that is stored by replay="success"


class Shelf:
    """The replay buffer of one run: whole units (replay="uniform") or single responses that succeeded ("success").

    Parameters
    ----------
    system : System
    groups, size : int     groups of a batch, responses of a group
    members : int          responses of a unit

    Attributes
    ----------
    now : int              groups of the coming batch that are replayed: as planned, or 0 if nothing is stored
    """

    def __init__(self, system: System, groups: int, size: int, members: int) -> None:
        self.system, self.groups, self.size = system, groups, size
        self.on = system.replay != "off"
        self.members = 1 if system.replay == "success" else members  # responses of what is stored
        items = groups * size // self.members
        self.buffer = ReplayBuffer(system.replay_batches * items, system.eviction)
        self.now = 0
        self._plan: list[int] = []

    def planned(self, update: int) -> int:
        """Groups of this update's batch that are replayed if there is anything to replay."""
        if not self.on:
            return 0
        if update >= len(self._plan):
            self._plan = replay_counts(max(64, 2 * update), self.groups, self.system.replay_share)
        return self._plan[update]

    def settle(self, update: int) -> None:
        """Let the too old leave before this update, and decide how many groups it replays."""
        if self.system.replay_age is not None:
            oldest = update - self.system.replay_age
            self.buffer.stored = [kept for kept in self.buffer.stored if kept.made >= oldest]
        self.now = self.planned(update) if self.buffer.stored else 0

    def draw(self, update: int, chooser: Chooser) -> list[int]:
        """Responses that this update replays; one may come several times."""
        if not self.now:
            return []
        drawn = self.buffer.draw(self.now * self.size // self.members, update, chooser)
        return [i for kept in drawn for i in kept.item]

    def store(self, ids: Sequence[int], reward: Float[Tensor, " b"], update: int, chooser: Chooser) -> None:
        """Store what an update took fresh: responses in the order of their units, with their rewards."""
        if not self.on:
            return
        for start in range(0, len(ids), self.members):
            item = tuple(ids[start : start + self.members])
            if self.system.replay == "uniform" or float(reward[start]) >= SUCCESS:
                self.buffer.add(item, update, chooser)

    def held(self) -> set[int]:
        """Responses that are stored."""
        return {i for kept in self.buffer.stored for i in kept.item}

    def state(self) -> dict[str, Any]:
        """Return plain values."""
        stored = [(list(kept.item), kept.made) for kept in self.buffer.stored]
        return {"stored": stored, "choices": self.buffer.choices, "now": self.now}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        self.buffer.stored = [Stored(tuple(item), made) for item, made in state["stored"]]
        self.buffer.choices, self.now = state["choices"], state["now"]
