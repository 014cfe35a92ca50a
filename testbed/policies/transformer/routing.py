"""Which experts acted where: recorded by a sampler, replayed by a trainer, compared between the two.

Routing replay (R3) removes the part of the mismatch that comes from other experts acting; it cannot remove the part that
comes from other rounding inside the same experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Routes:
    """Experts by context slot and layer, in ascending order; -1 where nothing was recorded.

    `first` is, for each row, the slot whose law gives the first response token.
    """

    experts: Int64[Tensor, "B S L k"]
    first: Int64[Tensor, " B"]

    def over(self, slots: int, rows: int) -> Int64[Tensor, "B S L k"]:
        """Fit the record to a context of this many slots; what was not recorded is -1.

        Raises
        ------
        InputError   a record of another number of rows
        """
        if self.experts.shape[0] != rows:
            raise InputError(f"the record must hold the routes of these {rows} rows", found=self.experts.shape[0])
        kept = self.experts[:, :slots]
        return torch.nn.functional.pad(kept, (0, 0, 0, 0, 0, slots - kept.shape[1]), value=-1)

    def of_tokens(self, count: int) -> Int64[Tensor, "B T L k"]:
        """Experts in the pass that gave the law of each of `count` response tokens."""
        slot = self.first[:, None] + torch.arange(count, device=self.first.device)
        inside = self.over(int(slot.max()) + 1 if slot.numel() else 0, self.experts.shape[0])
        return inside[torch.arange(len(slot), device=slot.device)[:, None], slot]


def flipped_layers(one: Routes, other: Routes, tokens: int) -> Int64[Tensor, "B T"]:
    """Count, for every response token, the layers in which two engines used different sets of experts.

    N_flip(b, t) = #{layer : chosen by one != chosen by the other}, at the slot whose law the token is drawn from; slots that
    one of the two did not record count 0

    Examples
    --------
    >>> one = Routes(torch.tensor([[[[0, 1], [2, 3]]]]), torch.tensor([0]))
    >>> other = Routes(torch.tensor([[[[0, 1], [1, 3]]]]), torch.tensor([0]))
    >>> flipped_layers(one, other, 1)
    tensor([[1]])
    """
    left, right = one.of_tokens(tokens), other.of_tokens(tokens)
    return ((left != right) & (left >= 0) & (right >= 0)).any(-1).sum(-1)
