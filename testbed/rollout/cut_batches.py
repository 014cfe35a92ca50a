"""Batches cut by a clock: n responses start together, every token takes one tick, and the first m to end are kept.

Each response is drawn from its policy, and what the sampler records about it is right; which responses come back is
decided by their lengths. `testbed.exact.inclusion` has the exact law of what is kept and the weight that repairs it.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.schedule import Schedule
from testbed.rollout.engine import rollout

TIE = -2  # the position of a tie's draw in the chooser's key; tokens have 0, 1, ..., the schedule's branch -1


def ticks_to_end(batch: SegmentedBatch) -> Int64[Tensor, " B"]:
    """Tick at which each response ends: its number of tokens, the end token included."""
    return batch.lengths


def first_to_end(
    ticks: Int64[Tensor, " n"], m: int, chooser: Chooser, numbers: Int64[Tensor, " n"] | None = None
) -> Int64[Tensor, " m"]:
    """Rows of the m smallest ticks, every choice among ties equally likely.

    Parameters
    ----------
    ticks : Int64[Tensor, " n"]   when each row ends
    m : int                       rows to keep, 1 <= m <= n
    chooser : Chooser             draws among ties; keys are (number of the row, -2)
    numbers : Int64[Tensor, " n"] | None   what the chooser knows the rows by; None: 0, 1, ...

    Returns
    -------
    Int64[Tensor, " m"]           in increasing order of the row, which says nothing about who ended first

    Raises
    ------
    InputError   m < 1 or m > n

    Gives        P(row is kept | ticks) = min(1, (m - below)+ / (ties + 1)), counting the other rows below and at its tick
    Numerics     tied rows are walked once, each taken with probability places / rows left: C(ties, places) branches
    References   Fan, Muller and Rezucha 1962 (selection sampling)

    Examples
    --------
    >>> from testbed import ReplayChooser
    >>> ticks = torch.tensor([3, 1, 3])
    >>> [(rows, round(p, 12)) for rows, p in ReplayChooser.walk(lambda c: first_to_end(ticks, 2, c).tolist())]
    [([1, 2], 0.5), ([0, 1], 0.5)]
    """
    n = ticks.shape[0]
    if not 1 <= m <= n:
        raise InputError(f"`m` must lie in 1..{n}, the number of responses", found=m)
    last = ticks.sort().values[m - 1]
    kept = ticks < last
    tied = torch.nonzero(ticks == last)[:, 0].tolist()
    places = m - int(kept.sum())
    for passed, row in enumerate(tied):
        left = len(tied) - passed
        taken = int(places == left)
        if 0 < places < left:
            law = torch.tensor([[1 - places / left, places / left]], dtype=torch.float64)
            number = row if numbers is None else int(numbers[row])
            taken = int(chooser.choose(law, torch.tensor([[number, TIE]])))
        kept[row] = bool(taken)
        places -= taken
    return torch.nonzero(kept)[:, 0]


def finished_first(
    env: Environment,
    schedule: Schedule | Policy,
    n: int,
    m: int,
    chooser: Chooser,
    target: Policy | None = None,
) -> SegmentedBatch:
    """Draw n responses of one prompt and return the first m to end.

    Parameters
    ----------
    env, schedule, chooser, target   as in `rollout`
    n : int                          responses that start, all at tick 0
    m : int                          responses that are kept, 1 <= m <= n; the others are lost

    Returns
    -------
    SegmentedBatch   [m, T], rows in the order they were started

    Raises
    ------
    InputError   m < 1 or m > n, and what `rollout` raises

    Gives            a length-biased batch whose recorded ratios do not show it (S8); m = n is `rollout`

    Examples
    --------
    >>> from testbed import PrefixTree, RandomChooser, TabularPolicy
    >>> stops = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]))
    >>> env = PrefixTree(2, 2, rewards=[0.0, 0.0, 0.0, 1.0], eos=1)
    >>> finished_first(env, stops, 60, 10, RandomChooser(0)).lengths.unique().tolist()
    [1]
    """
    batch = rollout(env, schedule, n, chooser, target=target)
    return batch.select(first_to_end(ticks_to_end(batch), m, chooser))
