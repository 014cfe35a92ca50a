"""One token under a capped rule: worlds of `theory.mismatch_worlds` times the caps that C5 and C6 speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.weighting.rules import weigh
from theory.mismatch_worlds import mismatch, mismatches, probabilities
from theory.worlds import World

LAM = 0.45
RULES: dict[str, dict[str, Any]] = {
    "tis": {"cap": 2.0},
    "tight_tis": {"cap": 1.05},
    "odds": {"lam": LAM, "floor": 0.0},
    "odds_floor": {"lam": LAM, "floor": 0.1},
    "odds_default": {"lam": 2.3, "floor": 5e-3},
    "linear": {"lam": LAM, "floor": 5e-3, "cap_form": "linear"},
    "loglinear": {"lam": LAM, "floor": 5e-3, "cap_form": "loglinear"},
}


@dataclass(frozen=True, kw_only=True)
class Capped:
    """A world of one token under one capped rule."""

    name: str
    world: World
    rule: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """constant, odds, linear or loglinear."""
        return "constant" if self.rule == "tis" else str(self.params.get("cap_form", "odds"))

    @property
    def caps(self) -> np.ndarray:
        """Cap of every token of the vocabulary."""
        values = probabilities(self.world)
        if self.rule == "tis":
            return np.full(len(values["p"]), self.params["cap"])
        phi, lam = np.maximum(values["pbar"], self.params["floor"]), self.params["lam"]
        return {"odds": 1 + phi * np.expm1(lam), "linear": 1 + phi * lam, "loglinear": np.exp(phi * lam)}[self.form]

    @property
    def bound(self) -> float:
        """What no cap of this rule exceeds, whatever the confidence (floor at most 1)."""
        if self.rule == "tis":
            return float(self.params["cap"])
        return 1 + self.params["lam"] if self.form == "linear" else float(np.exp(self.params["lam"]))

    @property
    def weights(self) -> Tensor:
        """The library's weight of every drawn token."""
        return weigh(self.rule, self.world.batch, **self.params).value[:, 0]

    def of_drawn(self, values: np.ndarray) -> Tensor:
        """A number per token of the vocabulary as one per row of the law."""
        return torch.from_numpy(values[self.world.batch.tokens[:, 0].numpy()])


def capped_tokens(*names: str) -> list[Capped]:
    """Every mismatch under the rules named, or under all of them, and a trainer that has made up its mind.

    Examples
    --------
    >>> [c.name for c in capped_tokens("tis", "odds")][:2]
    ['mild_tis', 'mild_odds']
    """
    return [
        Capped(name=f"{world.name}_{name}", world=world, rule="tis" if "tis" in name else "cis", params=RULES[name])
        for world in (*mismatches(), mismatch("certain", [1.0, 0.0, 0.0], [0.7, 0.2, 0.1]))
        for name in names or RULES
    ]
