"""What a training system is to the clock: when it generates, what a push of weights does to running responses, who is taken.

Plain values with names, so that a configuration can spell them out and a record can hold them.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from testbed.core.errors import InputError

CHOICES = {
    "generation": ("rounds", "stream"),
    "push": ("finish", "recompute", "stale_cache"),
    "deliver": ("group", "response"),
    "order": ("fifo", "finished"),
    "leftover": ("resume", "drop"),
    "objective": ("direct", "decoupled"),
    "replay": ("off", "uniform", "success"),
    "eviction": ("fifo", "random"),
}
LEAST = {"ahead": 0, "queue": 1, "slots": 1, "replay_batches": 1, "replay_age": 1}  # whole numbers, or None
FLAGS = ("pinned", "refill")
SECONDS = ("step_seconds", "response_seconds", "prefill_seconds", "update_seconds", "push_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way to run a generator beside a trainer.

    Parameters
    ----------
    name, source : str           what it is called, and the arXiv id of the paper that describes it ("": none)
    generation : "rounds" | "stream"
        rounds: the responses of one update are started together, and the next round opens when they are done; stream: a
        freed slot is given to the next response at once
    ahead : int | None
        rounds: the round of update u opens once the weights have version u - ahead; stream: a group is admitted only if
        at most (version + ahead + 1) batches of them would then have been, and no response older than `ahead` updates
        is left for a later batch: the bound on staleness. None: no such rule (stream only)
    queue : int | None           stream: no admission while this many batches wait for the trainer
    pinned : bool                rounds: write with version u - ahead even if later weights are at hand
    push : "finish" | "recompute" | "stale_cache"
        what new weights do to running responses. finish: each ends under the weights it started with; recompute: all go
        on under the new weights, which read the response again; stale_cache: all go on under the new weights, on the
        keys and values of the old
    deliver : "group" | "response"   whether the responses to a prompt are taken together or as each ends
    order : "fifo" | "finished"  take what was admitted first (and wait for it), or what ended first
    start : float                rounds: groups started per group that the update takes, >= 1
    refill : bool                rounds: start another group for each one that ends, until the round is over
    leftover : "resume" | "drop" rounds with start > 1: what becomes of the unfinished once enough have ended
    slots : int | None           responses that run at once; None: as many as a batch (a round with all it starts) has
    objective : "direct" | "decoupled"
        what the paper trains with, as advice to a reader: nothing here acts on it. A system schedules; what a run trains with
        is the `rule` of its settings, and the one that is meant by decoupled is "decoupled_ppo"
    replay : "off" | "uniform" | "success"   what is stored for later: nothing, all, responses of reward >= 1
    replay_share : float         share of a batch's groups that is replayed instead of fresh, in [0, 1). Above
                                 1 - 1 / groups some batches hold nothing fresh, and near 1 nearly all: at .9999 and one
                                 group, 10,000 updates pass between two fresh groups
    replay_batches : int         capacity of the buffer, in batches
    replay_age : int | None      stored responses leave once they were taken more than this many updates ago
    eviction : "fifo" | "random" who leaves a full buffer
    step_seconds, response_seconds : float   a decode step takes step_seconds + response_seconds * running
    prefill_seconds : float      per token of a response that is read again after a push or a pause
    update_seconds, push_seconds : float     an update, and the push of its weights; the trainer is busy with both

    Raises
    ------
    InputError   a value that is not allowed, with its name; a combination that contradicts itself

    Examples
    --------
    >>> system = System(name="mine", generation="stream", ahead=2, order="finished")
    >>> system.bound, system.but(ahead=3).bound, system.step_time(10)
    (2, 3, 0.011)
    """

    name: str
    source: str = ""
    generation: Literal["rounds", "stream"] = "rounds"
    ahead: int | None = None
    queue: int | None = None
    pinned: bool = False
    push: Literal["finish", "recompute", "stale_cache"] = "finish"
    deliver: Literal["group", "response"] = "group"
    order: Literal["fifo", "finished"] = "fifo"
    start: float = 1.0
    refill: bool = False
    leftover: Literal["resume", "drop"] = "resume"
    slots: int | None = None
    objective: Literal["direct", "decoupled"] = "direct"
    replay: Literal["off", "uniform", "success"] = "off"
    replay_share: float = 0.0
    replay_batches: int = 4
    replay_age: int | None = None
    eviction: Literal["fifo", "random"] = "fifo"
    step_seconds: float = 0.01
    response_seconds: float = 0.0001
    prefill_seconds: float = 0.0
    update_seconds: float = 0.1
    push_seconds: float = 0.01

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"`{name}` must be one of {', '.join(choices)}", found=repr(getattr(self, name)))
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise InputError(f"`{name}` must be a whole number >= {least}", found=repr(value))
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"`{name}` must be true or false", found=repr(getattr(self, name)))
        for name in (*SECONDS, "start", "replay_share"):
            if not isinstance(getattr(self, name), int | float) or isinstance(getattr(self, name), bool):
                raise InputError(f"`{name}` must be a number", found=repr(getattr(self, name)))
        for name in SECONDS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0) or (name == "step_seconds" and value == 0):
                raise InputError(f"`{name}` must be finite and {'>' if name == SECONDS[0] else '>='} 0", found=value)
        if not (math.isfinite(self.start) and self.start >= 1):
            raise InputError("`start` must be finite and >= 1", found=self.start)
        if not 0 <= self.replay_share < 1:
            raise InputError("`replay_share` must lie in [0, 1)", found=self.replay_share)
        for wrong, rule, found in self._contradictions():
            if wrong:
                raise InputError(rule, found=found)

    def _contradictions(self) -> list[tuple[bool, str, str]]:
        rounds, more = self.generation == "rounds", self.start > 1
        made = f"generation={self.generation!r}"
        return [
            (rounds and self.ahead is None, "rounds need `ahead`", "ahead=None"),
            (rounds and self.queue is not None, "`queue` belongs to a stream; rounds wait by `ahead`", made),
            (not rounds and self.ahead is None and self.queue is None, "a stream needs `ahead` or `queue`", "neither"),
            (not rounds and (more or self.refill), "`start` and `refill` belong to rounds", made),
            (self.pinned and (not rounds or more), "`pinned` needs rounds that start what they take", made),
            (self.pinned and self.push != "finish", "`pinned` needs push='finish'", f"push={self.push!r}"),
            (more and self.order == "fifo", "`start` > 1 needs order='finished'", "order='fifo'"),
            (
                more and self.leftover == "resume" and self.push == "finish",
                "leftover='resume' needs push='recompute' or 'stale_cache': what is resumed goes on under new weights",
                "push='finish'",
            ),
            (
                self.refill and not (more and self.leftover == "resume"),
                "`refill` needs `start` > 1 and leftover='resume'",
                f"start={self.start}, leftover={self.leftover!r}",
            ),
            (
                (self.replay == "off") != (self.replay_share == 0),
                "`replay` and `replay_share` must be on together",
                f"replay={self.replay!r}, replay_share={self.replay_share}",
            ),
        ]

    @property
    def bound(self) -> int | None:
        """Updates that no fresh token is ever older than; None if the system promises nothing."""
        resumes = self.start > 1 and self.leftover == "resume"
        return None if resumes else self.ahead

    def step_time(self, running: int) -> float:
        """Seconds of a decode step with this many responses."""
        return self.step_seconds + self.response_seconds * running

    def but(self, **changes: Any) -> System:
        """Return this system with some values changed.

        Raises
        ------
        InputError   an unknown name, a value that is not allowed
        """
        return replace(self, **known(changes))

    def plain(self) -> dict[str, Any]:
        """Return all values by name, as JSON has them; `System(**plain)` reads them back."""
        return asdict(self)


def known(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, or raise InputError at a name that no system has."""
    names = [f.name for f in fields(System)]
    unknown = sorted(values.keys() - set(names))
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, 1)
        hint = f"did you mean `{near[0]}`?" if near else ""
        raise InputError(f"a system has {', '.join(names)}", found=", ".join(unknown), hint=hint)
    return values
