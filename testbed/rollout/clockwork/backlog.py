"""Who has been admitted, who waits for a slot, who is paused, who has ended: whole numbers only.

Responses are numbered in the order of admission, over the whole run: those of group g are g * size, ..., (g + 1) * size - 1.
What the trainer takes at once is a unit: a group, or one response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PLAIN = ("admitted", "ended", "taken")


class Backlog:
    """Units between admission and the trainer.

    Parameters
    ----------
    size : int         responses to a prompt
    whole : bool       a unit is a group (True) or a response

    Attributes
    ----------
    admitted : int             groups admitted so far
    pending : list of int      responses that wait for a slot, in the order they will get one
    paused : list of int       unfinished responses of earlier rounds
    open : dict of unit -> members that have not ended
    oldest : dict of unit -> version of its first token, of units not taken
    done : dict whose keys are the units that have ended and wait, in the order they ended
    ended, taken : int         units that ended (and were kept), and that the trainer took, so far

    Examples
    --------
    >>> backlog = Backlog(size=2, whole=True)
    >>> backlog.admit(), backlog.pending
    (0, [0, 1])
    >>> backlog.started([0, 1], 0), backlog.finish([1]), backlog.finish([0]), backlog.oldest_first(1, 0, None)
    (None, [], [0], [0])
    """

    def __init__(self, size: int, whole: bool) -> None:
        self.size, self.members = size, size if whole else 1
        self.units_per_group = size // self.members
        self.admitted = self.ended = self.taken = 0
        self.pending: list[int] = []
        self.paused: list[int] = []
        self.open: dict[int, int] = {}
        self.oldest: dict[int, int] = {}
        self.done: dict[int, None] = {}

    def responses(self, units: Sequence[int]) -> list[int]:
        """Responses of these units, in increasing order."""
        return sorted(i for unit in units for i in range(unit * self.members, (unit + 1) * self.members))

    def admit(self) -> int:
        """Admit the next group and return its number."""
        group = self.admitted
        first = group * self.size
        self.pending += range(first, first + self.size)
        for unit in range(group * self.units_per_group, (group + 1) * self.units_per_group):
            self.open[unit] = self.members
        self.admitted += 1
        return group

    def next_pending(self, most: int) -> list[int]:
        """Take up to `most` responses off the queue for slots."""
        chosen, self.pending = self.pending[:most], self.pending[most:]
        return chosen

    def started(self, ids: Sequence[int], version: int) -> None:
        """Note the version that a unit's first response starts under."""
        for i in ids:
            self.oldest.setdefault(i // self.members, version)

    def finish(self, ids: Sequence[int]) -> list[int]:
        """Note responses that ended, and return the units that thereby did."""
        ended = []
        for i in ids:
            unit = i // self.members
            self.open[unit] -= 1
            if self.open[unit] == 0:
                del self.open[unit]
                self.done[unit] = None
                ended.append(unit)
        self.ended += len(ended)
        return ended

    def first_admitted(self, need: int) -> list[int] | None:
        """Return the next `need` units in the order of admission, once all have ended."""
        units = range(self.taken, self.taken + need)
        return list(units) if all(unit in self.done for unit in units) else None

    def oldest_first(self, need: int, version: int, bound: int | None) -> list[int] | None:
        """Return `need` units in the order they ended, but first those too old for the next batch, which it waits for."""
        if len(self.done) < need:
            return None
        due = [] if bound is None else [unit for unit, first in self.oldest.items() if first <= version - bound]
        if any(unit not in self.done for unit in due):
            return None
        return [*due, *(unit for unit in self.done if unit not in due)][:need]

    def take(self, units: Sequence[int]) -> None:
        """Hand units over to the trainer."""
        for unit in units:
            del self.done[unit], self.oldest[unit]
        self.taken += len(units)

    def pause(self, stopped: Sequence[int]) -> None:
        """Put what was running and what was pending aside for a later round."""
        self.paused = sorted([*self.paused, *stopped, *self.pending])
        self.pending = []

    def resume(self, most: int) -> int:
        """Queue the paused responses of up to `most` units, first admitted first, and return how many units these are."""
        units = sorted({i // self.members for i in self.paused})[:most]
        self.pending += [i for i in self.paused if i // self.members in units]
        self.paused = [i for i in self.paused if i // self.members not in units]
        return len(units)

    @property
    def active(self) -> int:
        """Units that have not ended and are not paused."""
        return len(self.open) - len({i // self.members for i in self.paused})

    def drop(self, also: Sequence[int]) -> list[int]:
        """Lose every unit that has not ended, and `also` these that have; return their responses."""
        for unit in also:
            del self.done[unit]
        self.ended -= len(also)
        lost = [*self.open, *also]
        for unit in lost:
            self.oldest.pop(unit, None)
        self.pending, self.paused, self.open = [], [], {}
        return self.responses(lost)

    def state(self) -> dict[str, Any]:
        """Return plain values."""
        lists = {"pending": list(self.pending), "paused": list(self.paused), "done": list(self.done)}
        return (
            {name: getattr(self, name) for name in PLAIN}
            | lists
            | {"open": dict(self.open), "oldest": dict(self.oldest)}
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        for name in PLAIN:
            setattr(self, name, state[name])
        self.pending, self.paused, self.done = (
            list(state["pending"]),
            list(state["paused"]),
            dict.fromkeys(state["done"]),
        )
        self.open, self.oldest = dict(state["open"]), dict(state["oldest"])
