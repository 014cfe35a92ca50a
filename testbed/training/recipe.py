"""How a warm start changes the weights. No numerical library is needed to know the defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the weights are changed: AdamW with a warm-up, then a constant rate or half a cosine down to 0.

    Parameters
    ----------
    steps, batch : int                    updates; problems per update
    rate : float                          peak learning rate
    schedule : "cosine" | "constant"      after the warm-up
    warmup : int                          steps of linear rise, >= 0
    decay : float                         weight decay of the matrices (none of the norms)
    clip : float                          longest gradient; a longer one is scaled down to it
    betas : (float, float)                memories of AdamW
    corruption : float                    share of the demonstrations that show another problem's answer: what is learned is
                                          right that much more rarely, and reinforcement has something to unlearn

    Raises
    ------
    InputError   a size below its least, a rate or clip that is not positive, another schedule, a share outside [0, 1]

    Examples
    --------
    >>> recipe = Recipe(steps=100, rate=1.0, warmup=10)
    >>> [round(recipe.rate_at(step), 3) for step in (0, 9, 55, 99)]
    [0.1, 1.0, 0.5, 0.0]
    """

    steps: int = 1000
    batch: int = 128
    rate: float = 3e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: int = 30
    decay: float = 0.01
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    corruption: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` must be >= {least}", found=getattr(self, name))
        for name in ("rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"`{name}` must be finite and > 0", found=getattr(self, name))
        if not 0 <= self.corruption <= 1:
            raise InputError("`corruption` must lie in [0, 1]", found=self.corruption)
        if self.schedule not in ("cosine", "constant"):
            raise InputError("`schedule` must be 'cosine' or 'constant'", found=repr(self.schedule))

    def rate_at(self, step: int) -> float:
        """Learning rate of update number `step`, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "constant":
            return self.rate * rise
        done = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * rise * (1 + math.cos(math.pi * done)) / 2
