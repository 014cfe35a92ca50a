"""Warm starts for studies: for each task, parameters and a recipe that leave reinforcement learning something to learn.

Measured with two layers of width 32 and feed-forward layers of 64, dense and as four experts, for three seeds or five. The
reward is that of one response at temperature 1 to each held-out problem; the last column is where the same model gets to, dense
and with experts, with so many steps of a cosine.

    task              problems   stops at    after steps   CPU seconds   could reach (steps)
    addition            10,000   0.40-0.45     380-800        6-14       1.00, 0.99 (2500)
    modular_sum          1,000   0.40-0.46     175-390        2-7        1.00, 0.92 (1500)
    worked_addition     10,000   0.40-0.46     280-530        9-18       0.97, 0.99 (1500)
    parity               1,016   0.59-0.65      75-115        2-4        0.97, 0.97 (600)
    sorting              5,100   0.41-0.50      75-85         1-3        0.99, 0.99 (600)

A random bit is right half of the time, so the parity's start lies above that: from 0.5 there is nothing to climb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartChoice:
    """Parameters of a task, and how a small transformer is prepared for it.

    Parameters
    ----------
    params : mapping     of `make_task`
    recipe : Recipe      with more steps than are needed
    until : float        reward at which the warm start stops
    every : int          steps between looks: so few that the reward does not run far past `until` in between
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe
    until: float = 0.4
    every: int = 10


WARM_STARTS: dict[str, WarmStartChoice] = {
    "addition": WarmStartChoice(params={"max_operand": 99}, recipe=Recipe(steps=1500, schedule="constant")),
    "modular_sum": WarmStartChoice(recipe=Recipe(steps=800, schedule="constant"), every=5),
    "worked_addition": WarmStartChoice(recipe=Recipe(steps=1200, schedule="constant")),
    "parity": WarmStartChoice(
        params={"bits": 9, "least_bits": 3}, recipe=Recipe(steps=400, schedule="constant"), until=0.58, every=5
    ),
    "sorting": WarmStartChoice(
        params={"digits": 5, "least_digits": 2, "per_length": 2000},
        recipe=Recipe(steps=400, schedule="constant"),
        every=5,
    ),
}
