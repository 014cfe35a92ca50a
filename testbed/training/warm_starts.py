"""Warm starts for studies: for each task, parameters and a recipe that leave reinforcement learning something to learn.

Measured with two layers of width 32 and feed-forward layers of 64, dense and as four experts: see the table below.
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
        params={"bits": 9, "least_bits": 3}, recipe=Recipe(steps=400, schedule="constant"), until=0.5, every=5
    ),
    "sorting": WarmStartChoice(
        params={"digits": 5, "least_digits": 2, "per_length": 2000},
        recipe=Recipe(steps=400, schedule="constant"),
        every=5,
    ),
}
