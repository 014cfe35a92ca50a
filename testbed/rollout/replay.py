"""A replay buffer that is really filled, drawn from and evicted from, with the age of everything it hands out.

Ages are what drift grows with. First-in-first-out eviction bounds them; random eviction gives them a geometric tail, and a
variance that grows geometrically with age can then have an infinite mean, however rarely an old item is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.engine import rollout

Eviction = Literal["fifo", "random"]
DRAWN, EVICTED = (
    -3,
    -4,
)  # positions in the chooser's key; tokens have 0, 1, ..., a schedule's branch -1, a finished-first tie -2


class Stored(NamedTuple):
    """An item and the step it was made at."""

    item: Any
    made: int


class ReplayBuffer:
    """Keeps at most `capacity` items; when full, a new item takes the place of the oldest or of a random one.

    Parameters
    ----------
    capacity : int                    >= 1 items
    eviction : "fifo" or "random"     who leaves: the oldest item, or each stored one with probability 1 / capacity

    Attributes
    ----------
    stored : list of Stored           oldest first
    choices : int                     draws and evictions so far: what the chooser's keys number them by

    Raises
    ------
    InputError   a capacity below 1, another eviction

    Examples
    --------
    >>> from testbed import RandomChooser
    >>> buffer, chooser = ReplayBuffer(2), RandomChooser(0)
    >>> for step, item in enumerate("abc"):
    ...     buffer.add(item, step, chooser)
    >>> [kept.item for kept in buffer.stored], buffer.draw(1, 3, chooser)[0].made >= 1
    (['b', 'c'], True)
    """

    def __init__(self, capacity: int, eviction: Eviction = "fifo") -> None:
        if capacity < 1:
            raise InputError("`capacity` must be >= 1", found=capacity)
        self.capacity = capacity
        self.eviction = checked_eviction(eviction)
        self.stored: list[Stored] = []
        self.choices = 0

    def add(self, item: Any, step: int, chooser: Chooser) -> None:
        """Store an item made at `step`, evicting another if there is no room."""
        if len(self.stored) == self.capacity:
            self.stored.pop(self._leaving(chooser))
        self.stored.append(Stored(item, step))

    def _leaving(self, chooser: Chooser) -> int:
        return 0 if self.eviction == "fifo" else self._choose(1, EVICTED, chooser)[0]

    def draw(self, n: int, step: int, chooser: Chooser) -> list[Stored]:
        """Draw n stored items, independently and uniformly, with replacement.

        Raises
        ------
        InputError   n < 0, an empty buffer, or an item that is made later than `step`
        """
        if n < 0 or (n > 0 and not self.stored):
            raise InputError("`n` must be >= 0, and 0 while the buffer is empty", found=n)
        if any(kept.made > step for kept in self.stored):
            raise InputError("a step must not lie before the items in the buffer were made", found=step)
        return [self.stored[i] for i in self._choose(n, DRAWN, chooser)] if n else []

    def _choose(self, n: int, position: int, chooser: Chooser) -> list[int]:
        law = torch.full((n, len(self.stored)), 1.0 / len(self.stored), dtype=torch.float64)
        numbers = torch.arange(self.choices, self.choices + n)
        self.choices += n
        return chooser.choose(law, torch.stack([numbers, torch.full_like(numbers, position)], 1)).tolist()


def checked_eviction(eviction: str) -> Eviction:
    """Return the eviction, or raise InputError if there is none of this name."""
    if eviction == "fifo" or eviction == "random":
        return eviction
    raise InputError("`eviction` must be 'fifo' or 'random'", found=repr(eviction))


def replay_counts(steps: int, n: int, share: float | int) -> list[int]:
    """Replayed samples of each step: whole numbers whose running total never strays from share * n by one.

        floor((t+1) a n) - floor(t a n), and 0 at the first step, when nothing is stored

    Raises
    ------
    InputError   steps or n < 1, a share outside [0, 1]

    Examples
    --------
    >>> replay_counts(6, 2, 0.25)
    [0, 1, 0, 1, 0, 1]
    """
    if steps < 1 or n < 1:
        raise InputError("`steps` and `n` must be >= 1", found=f"{steps} and {n}")
    if not 0 <= share <= 1:
        raise InputError("`share` must lie in [0, 1]", found=share)
    totals = [int(t * share * n + 1e-9) for t in range(steps + 1)]
    return [0, *[late - early for early, late in itertools.pairwise(totals[1:])]]


def replayed_ages(
    steps: int, n: int, share: float | int, buffer: ReplayBuffer, chooser: Chooser
) -> list[Int64[Tensor, " replayed"]]:
    """Ages of the replayed samples of each step, in steps since they were made.

    A step draws its replayed samples first and then stores its fresh ones, so the least age is 1.

    Parameters
    ----------
    steps, n : int          steps of n samples each
    share : float           a in [0, 1]; see `replay_counts`
    buffer : ReplayBuffer   empty; it is filled
    chooser : Chooser       draws and evicts

    Returns
    -------
    list of Int64[Tensor, " replayed"]   one per step; empty for the first

    Examples
    --------
    >>> from testbed import RandomChooser
    >>> [ages.tolist() for ages in replayed_ages(3, 2, 0.5, ReplayBuffer(1), RandomChooser(0))]
    [[], [1], [1]]
    """
    ages = []
    for step, count in enumerate(replay_counts(steps, n, share)):
        ages.append(ages_of(buffer.draw(count, step, chooser), step))
        for number in range(n - count):
            buffer.add((step, number), step, chooser)
    return ages


def ages_of(drawn: Sequence[Stored], step: int) -> Int64[Tensor, " n"]:
    """Steps since each item was made.

    Examples
    --------
    >>> ages_of([Stored("a", 3)], 5).tolist()
    [2]
    """
    return torch.tensor([step - kept.made for kept in drawn], dtype=torch.int64)


class MixedBatch(NamedTuple):
    """A batch of replayed and fresh responses: the replayed come first; `age` is 0 for the fresh."""

    batch: SegmentedBatch
    age: Int64[Tensor, " B"]


def mixed_batches(
    env: Environment, policies: Sequence[Policy], n: int, share: float | int, buffer: ReplayBuffer, chooser: Chooser
) -> Iterator[MixedBatch]:
    """Per step, a batch of n responses, a share of them from the buffer, scored under the policy of that step.

    Parameters
    ----------
    env : Environment
    policies : sequence     policies[t] draws the fresh responses of step t and is the target of the whole batch
    n, share                as `replayed_ages`
    buffer : ReplayBuffer   empty; it stores single responses as recorded
    chooser : Chooser       draws tokens, replayed responses and evictions

    Yields
    ------
    MixedBatch   `logp_behavior` and `version` are those recorded when a response was drawn; `logp_target` is the step's

    Assumes      a chooser that does not repeat its noise: `rollout` numbers the responses of every step from 0

    Examples
    --------
    >>> from testbed import PrefixTree, RandomChooser, TabularPolicy
    >>> policies = [TabularPolicy.random(2, 2, seed, 1.0) for seed in range(3)]
    >>> env = PrefixTree(2, 2, rewards=[0.0, 1.0, 2.0, 3.0])
    >>> [mixed.age.tolist() for mixed in mixed_batches(env, policies, 4, 0.5, ReplayBuffer(2), RandomChooser(0))]
    [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    """
    for step, count in enumerate(replay_counts(len(policies), n, share)):
        drawn = buffer.draw(count, step, chooser)
        rows: list[SegmentedBatch] = []
        if count < n:
            fresh = rollout(env, policies[step], n - count, chooser, target=policies[step])
            fresh = fresh.replaced(version=torch.where(fresh.mask, step, -1))
            rows = [fresh.select(torch.tensor([row])) for row in range(n - count)]
        batch = SegmentedBatch.concatenated([kept.item for kept in drawn] + rows)
        with torch.no_grad():
            scored = policies[step].at(batch.group).score(batch.tokens).double()
        yield MixedBatch(
            batch.replaced(logp_target=torch.where(batch.mask, scored, 0.0)),
            torch.cat([ages_of(drawn, step), torch.zeros(n - count, dtype=torch.int64)]),
        )
        for row in rows:
            buffer.add(row, step, chooser)
