"""Caps for the weights of a transformer's stale responses: their exact law, their error counted out, SPIRE on their batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.exact.moments import batch_statistic
from testbed.weighting.weight_families import Finite
from theory.cap_cases import CapCase
from theory.response_weights import response_weight
from theory.transformer_worlds import TransformerWorld, transformer_worlds

COUNTED = 2  # draws whose joint outcomes are all listed


@dataclass(frozen=True, kw_only=True)
class TransformerCaps(CapCase):
    """The law of W_T in a transformer's world, as a problem about caps."""

    world: TransformerWorld

    def counted(self) -> Tensor:
        """Mean squared error around 1 of the mean of `COUNTED` capped weights, over all their joint outcomes, at each cap."""
        law = self.world.law
        weight = response_weight(law.batch)
        kept = torch.minimum(weight[:, None], torch.tensor(self.caps, dtype=torch.float64))
        return batch_statistic(law, COUNTED, lambda index: (kept[index].mean(1) - 1) ** 2).mean


def transformer_caps(n: int = 16) -> list[TransformerCaps]:
    """One problem per world, for means of `n` draws.

    Examples
    --------
    >>> [round(float(case.law.second_moment), 2) for case in transformer_caps()]
    [4.21, 1.74, 1.25]
    """
    return [
        TransformerCaps(name=w.name, law=Finite(response_weight(w.batch), w.law.probs), n=n, world=w)
        for w in transformer_worlds()
    ]
