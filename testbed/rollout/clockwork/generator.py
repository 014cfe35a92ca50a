"""The generation engine: slots with running responses, the weights they run under, one token each per step."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.policies.base import Policy
from testbed.rollout.clockwork.opening import open_slots
from testbed.rollout.clockwork.response_table import ResponseTable
from testbed.rollout.clockwork.slots import Slots
from testbed.rollout.clockwork.snapshots import restored_policy, saved_policy


def _none() -> Int64[Tensor, " 0"]:
    return torch.zeros(0, dtype=torch.int64)


@dataclass(slots=True, eq=False)
class Desk:
    """Running responses that share one version: their ids, their rows in the table, their slots."""

    version: int
    held: Slots
    ids: Int64[Tensor, " b"] = field(default_factory=_none)
    rows: Int64[Tensor, " b"] = field(default_factory=_none)
    slots: Int64[Tensor, " b"] = field(default_factory=_none)


class Generator:
    """Writes one token of every running response per step, all of one version in one call.

    Parameters
    ----------
    policy : Policy            version 0; not changed by anyone from here on
    table : ResponseTable      where the tokens are written
    slots : int                responses that can run at once
    push : str                 what a push does to running responses (`System.push`)
    eos : int | None           token that ends a response
    """

    def __init__(self, policy: Policy, table: ResponseTable, slots: int, push: str, eos: int | None) -> None:
        self.table, self.push, self.eos, self.count = table, push, eos, slots
        self.newest = 0
        self.policies = {0: policy}  # versions that a response may still start or go on under
        self.desks: list[Desk] = []
        self.spare: list[Slots] = []  # of versions under which nothing runs any more
        self.free = list(range(slots))  # a heap: the lowest slot first

    @property
    def running(self) -> int:
        """Responses in a slot."""
        return self.count - len(self.free)

    def arrive(self, policy: Policy) -> None:
        """Take a push: the next version is at hand."""
        self.newest += 1
        self.policies[self.newest] = policy

    def keep_from(self, version: int) -> None:
        """Forget the weights of earlier versions, but for those that responses still run under."""
        self.policies = {v: policy for v, policy in self.policies.items() if v >= version}

    def switch(self) -> int:
        """Let the running responses go on under the newest weights, unless each finishes under its own.

        Returns
        -------
        int      tokens that are read again for it
        """
        if self.push == "finish" or not self.desks or self.desks[0].version == self.newest:
            return 0
        desk = self.desks[0]
        desk.version = self.newest
        desk.held.take(self.policies[self.newest])
        if self.push == "stale_cache":
            return 0
        desk.held.forget()
        return int(self.table.written[desk.rows].sum())

    def start(self, ids: Sequence[int], version: int) -> int:
        """Give each response a free slot under this version.

        Returns
        -------
        int      tokens that are read again: those written before a pause
        """
        desk, rows = self._desk(version), self.table.rows(ids)
        slots = torch.tensor([heapq.heappop(self.free) for _ in ids], dtype=torch.int64)
        written = self.table.written[rows]
        desk.held.admit(slots, self.table.group[rows], self.table.tokens[rows], written)
        desk.ids = torch.cat([desk.ids, torch.tensor(ids, dtype=torch.int64)])
        desk.rows, desk.slots = torch.cat([desk.rows, rows]), torch.cat([desk.slots, slots])
        return int(written.sum())

    def _desk(self, version: int) -> Desk:
        for desk in self.desks:
            if desk.version == version:
                return desk
        policy = self.policies[version]
        if self.spare:
            held = self.spare.pop()
            held.clear()
            held.take(policy)
        else:
            held = open_slots(policy, self.count, self.table.horizon)
        self.desks.append(Desk(version, held))
        return self.desks[-1]

    def write(self, chooser: Chooser) -> list[int]:
        """Write one token of every running response.

        Returns
        -------
        list of int    responses that ended, which leave their slots, in increasing order
        """
        desks = self.desks
        laws = _joined([desk.held.next_log_probs(desk.slots) for desk in desks])
        ids, rows = _joined([desk.ids for desk in desks]), _joined([desk.rows for desk in desks])
        at = self.table.written[rows]
        drawn = chooser.choose(laws.exp(), torch.stack([ids, at], 1))
        version = desks[0].version
        if len(desks) > 1:
            version = torch.cat([torch.full_like(desk.ids, desk.version) for desk in desks])
        self.table.write(rows, drawn, version, laws.gather(1, drawn[:, None])[:, 0])
        over = at + 1 >= self.table.horizon
        if self.eos is not None:
            over |= drawn == self.eos
        start, ended = 0, []
        for desk in list(desks):
            part = slice(start, start + len(desk.ids))
            start = part.stop
            desk.held.append(desk.slots, drawn[part])
            if bool(over[part].any()):
                ended += desk.ids[over[part]].tolist()
                self._leave(desk, over[part])
        return sorted(ended)

    def _leave(self, desk: Desk, leaving: Tensor) -> None:
        for slot in desk.slots[leaving].tolist():
            heapq.heappush(self.free, slot)
        stays = ~leaving
        desk.ids, desk.rows, desk.slots = desk.ids[stays], desk.rows[stays], desk.slots[stays]
        if len(desk.ids) == 0:
            self.desks.remove(desk)
            self.spare.append(desk.held)

    def stop(self) -> list[int]:
        """Take all running responses out of their slots and return them, in increasing order."""
        stopped: list[int] = []
        for desk in list(self.desks):
            stopped += desk.ids.tolist()
            self._leave(desk, torch.ones_like(desk.ids, dtype=torch.bool))
        return sorted(stopped)

    def state(self) -> dict[str, Any]:
        """Return tensors and plain values: versions, caches, and who stands where."""
        held = self.policies | {desk.version: desk.held.policy for desk in self.desks}
        return {
            "newest": self.newest,
            "free": list(self.free),
            "at_hand": sorted(self.policies),
            "versions": {version: saved_policy(policy) for version, policy in held.items()},
            "desks": [
                {
                    "version": desk.version,
                    "held": desk.held.state(),
                    "ids": desk.ids.clone(),
                    "slots": desk.slots.clone(),
                }
                for desk in self.desks
            ],
        }

    def restore(self, state: Mapping[str, Any], policy: Policy) -> None:
        """Take what `state` returned; `policy` says what kind the weights belong to."""
        versions = {v: restored_policy(policy, saved) for v, saved in state["versions"].items()}
        self.newest, self.free, self.spare = state["newest"], list(state["free"]), []
        self.policies = {v: versions[v] for v in state["at_hand"]}
        self.desks = []
        for saved in state["desks"]:
            held = open_slots(versions[saved["version"]], self.count, self.table.horizon)
            held.restore(saved["held"])
            rows = self.table.rows(saved["ids"].tolist())
            self.desks.append(Desk(saved["version"], held, saved["ids"].clone(), rows, saved["slots"].clone()))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
