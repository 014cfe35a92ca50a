"""Contexts: the start id, the prompt, then the response, packed from the left so that slot = position in every row.

Prompts of different lengths leave their padding at the right end, behind everything a real token can see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape


@dataclass(frozen=True, slots=True)
class Prompts:
    """What stands before every response: the start id and a prompt per group.

    `tokens` is [G, 1 + L], the start id first; `lengths` counts start and prompt. What stands beyond a length is ignored.
    """

    tokens: Int64[Tensor, "G L"]
    lengths: Int64[Tensor, " G"]

    @property
    def count(self) -> int:
        """Number of prompts."""
        return self.tokens.shape[0]

    def of(self, group: Int64[Tensor, " B"]) -> Prompts:
        """One prompt per row.

        Raises
        ------
        InputError   a prompt number that does not exist
        """
        if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < self.count:
            found = f"{int(group.min())}..{int(group.max())}"
            raise InputError(f"prompt numbers must lie in 0..{self.count - 1}", found=found)
        return Prompts(self.tokens[group], self.lengths[group])

    def to(self, device: torch.device) -> Prompts:
        """Move to a device."""
        return Prompts(self.tokens.to(device), self.lengths.to(device))

    def followed_by(self, response: Int64[Tensor, "G t"]) -> Int64[Tensor, "G S"]:
        """Context of each row: start, prompt, response, then zeros up to the longest.

        Examples
        --------
        >>> prompts = checked_prompts(5, torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
        >>> prompts.followed_by(torch.tensor([[4], [4]])).tolist()
        [[5, 1, 2, 4], [5, 3, 4, 0]]
        """
        rows, t = response.shape
        room = torch.zeros(rows, t, dtype=torch.int64, device=response.device)
        context = torch.cat([self.tokens, room], 1)
        slot = torch.arange(context.shape[1], device=response.device)
        context = torch.where(slot < self.lengths[:, None], context, 0)
        return context.scatter(1, self.lengths[:, None] + torch.arange(t, device=response.device), response)


def checked_prompts(vocab_size: int, prompts: Tensor | None, lengths: Tensor | None) -> Prompts:
    """Check prompts [G, L] and their lengths [G], and put the start id (vocab_size) before them.

    None is one empty prompt.

    Raises
    ------
    InputError   wrong shapes, lengths that do not fit, or ids outside the vocabulary
    """
    if prompts is None:
        prompts = torch.zeros(1, 0, dtype=torch.int64)
    if prompts.dim() != 2 or prompts.shape[0] < 1 or prompts.is_floating_point():
        raise InputError("`prompts` must be integers [prompts, L]", found=f"{prompts.dtype} {tuple(prompts.shape)}")
    count, longest = prompts.shape
    if lengths is None:
        lengths = torch.full((count,), longest, dtype=torch.int64)
    require_shape("lengths", lengths, (count,))
    if int(lengths.min()) < 0 or int(lengths.max()) > longest:
        raise InputError(f"`lengths` must lie in 0..{longest}", found=lengths.tolist()[:4])
    real = torch.arange(longest) < lengths[:, None]
    tokens = torch.where(real, prompts.long(), 0)
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        found = f"{int(tokens.min())}..{int(tokens.max())}"
        raise InputError(f"prompt tokens must lie in 0..{vocab_size - 1}", found=found)
    start = torch.full((count, 1), vocab_size, dtype=torch.int64)
    return Prompts(torch.cat([start, tokens], 1), lengths.long() + 1)
