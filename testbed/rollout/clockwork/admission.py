"""Who may start: a round when the weights are recent enough, or a group of a stream while the staleness bound allows it."""

from __future__ import annotations

import math
from typing import Any

from testbed.rollout.clockwork.backlog import Backlog
from testbed.rollout.clockwork.shelf import Shelf
from testbed.rollout.system import System

PLAIN = ("batches", "consumed", "round", "goal", "wanted")


class Admission:
    """The rules of a system about starting and taking.

    With Q(u) the fresh groups that the batches of updates 0..u take, a stream admits a group while fewer than
    Q(version + ahead) have been admitted: (version + ahead + 1) B without replay. At most the need of one batch can then
    have started `ahead` updates ago and not been taken, so the trainer can wait for all of these.

    Parameters
    ----------
    system, backlog, shelf
    groups : int           groups of a batch

    Attributes
    ----------
    batches, consumed : int      batches taken, groups taken fresh, so far
    round : int | None           the update whose round is open
    goal, wanted : int           units that must have ended for it to close; units it holds at once
    """

    def __init__(self, system: System, backlog: Backlog, shelf: Shelf, groups: int) -> None:
        self.system, self.backlog, self.shelf, self.groups = system, backlog, shelf, groups
        self.batches = self.consumed = self.goal = self.wanted = 0
        self.round: int | None = None

    def quota(self, update: int) -> int:
        """Fresh groups that the batches of all updates up to this one take."""
        coming = range(self.batches, update + 1)
        fresh = sum(map(self._fresh, coming)) if self.shelf.on else len(coming) * self.groups
        return self.consumed + fresh

    def _fresh(self, update: int) -> int:
        """Fresh groups that the batch of this update, not taken yet, takes; all may be replayed, so it can be 0."""
        if not self.shelf.on:
            return self.groups
        return self.groups - (self.shelf.now if update == self.batches else self.shelf.planned(update))

    def admit(self, version: int, free: int) -> list[int]:
        """Admit what may start now, and return the numbers of the new groups.

        Parameters
        ----------
        version : int      of the newest weights
        free : int         free slots
        """
        return self._to_round(version) if self.system.generation == "rounds" else self._to_stream(version, free)

    def _to_stream(self, version: int, free: int) -> list[int]:
        system, backlog = self.system, self.backlog
        most = math.inf if system.ahead is None else self.quota(version + system.ahead)
        room = math.inf if system.queue is None else system.queue * self.groups * backlog.units_per_group
        new = []
        while free > len(backlog.pending) and backlog.admitted < most and len(backlog.done) < room:
            new.append(backlog.admit())
        return new

    def _to_round(self, version: int) -> list[int]:
        """Open the round of the first update that is not provided for, or keep an open one full."""
        system, backlog = self.system, self.backlog
        if self.round is None:
            found = self._unprovided(version + (system.ahead or 0))
            if found is None:
                return []
            self.round, self.goal = found
            self.wanted = math.ceil(system.start * (self.goal - backlog.ended) - 1e-9)
            backlog.resume(self.wanted)
        elif not system.refill:
            return []
        new = []
        while backlog.active < self.wanted:
            new.append(backlog.admit())
        return new

    def _unprovided(self, last: int) -> tuple[int, int] | None:
        """First update up to `last` that needs more units than have ended, and how many it needs; None if there is none.

        A round may open for no later update, so none is looked at: where nearly everything is replayed, the next one that takes
        something fresh may be millions of updates away.
        """
        groups, units_per_group = self.consumed, self.backlog.units_per_group
        for update in range(self.batches, last + 1):
            groups += self._fresh(update)
            if groups * units_per_group > self.backlog.ended:
                return update, groups * units_per_group
        return None

    def writes_with(self, version: int) -> int:
        """Version that a response starts under."""
        if not self.system.pinned or self.round is None:
            return version
        return max(0, self.round - (self.system.ahead or 0))

    def kept_from(self, version: int) -> int:
        """Earliest version that a response may still start under."""
        return max(0, version - (self.system.ahead or 0)) if self.system.pinned else version

    @property
    def over(self) -> bool:
        """Whether enough units have ended for the open round to close."""
        return self.round is not None and self.backlog.ended >= self.goal

    def chosen(self, version: int) -> list[int] | None:
        """Units of the next batch, or None while it is not ready."""
        need = (self.groups - self.shelf.now) * self.backlog.units_per_group
        if self.system.order == "fifo":
            return self.backlog.first_admitted(need)
        bound = self.system.ahead if self.system.generation == "stream" else None
        return self.backlog.oldest_first(need, version, bound)

    def take(self, units: list[int]) -> None:
        """Note that the trainer took these units as one batch."""
        self.backlog.take(units)
        self.consumed += len(units) // self.backlog.units_per_group
        self.batches += 1

    def state(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in PLAIN}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        for name in PLAIN:
            setattr(self, name, state[name])
