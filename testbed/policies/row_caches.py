"""Keeping a model's cache for rows that grow, finish, pause and come back: each token is fed once.

Rows of one length share a batch of the model's cache. When only some of them are asked about, the batch is split; it is
never padded, so a row's numbers depend on what it shares a batch with, as in any engine, but on no filler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError


@runtime_checkable
class CachedModel(Protocol):
    """A model that continues where its cache stands."""

    vocab_size: int

    def start(self) -> Any:
        """Return an empty cache."""
        ...

    def feed(self, tokens: Int64[Tensor, "n m"], cache: Any) -> Float[Tensor, "n V"]:
        """Append m >= 1 tokens to each row of the cache and return the logits of the token after the last."""
        ...

    def select(self, cache: Any, index: Int64[Tensor, " k"]) -> Any:
        """Return a cache of these rows only; the given one stays as it is."""
        ...


@dataclass(slots=True)
class Shared:
    """Rows whose tokens, `seen` per row, stand in one cache; `logits` [n, V] are those after the last of them."""

    rows: Int64[Tensor, " n"]
    cache: Any
    seen: int = 0
    logits: Tensor | None = None


class RowCaches:
    """Logits of the next token of growing rows, each token fed to the model once.

    Parameters
    ----------
    model : CachedModel
    prompts : list of Int64[Tensor, " L"]   what stands before each row's response, at least one token each
    """

    def __init__(self, model: CachedModel, prompts: list[Int64[Tensor, " _L"]]) -> None:
        self.model, self.prompts = model, prompts
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self.groups = [
            Shared(rows=torch.nonzero(lengths == length)[:, 0], cache=model.start()) for length in lengths.unique()
        ]

    def next_logits(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Logits of the token after each prefix; prefix i belongs to row `rows[i]`, each row at most once.

        Raises
        ------
        InputError   a prefix shorter than what was seen of its row
        """
        answers: dict[int, Tensor] = {}
        for group in self._split(rows):
            order = torch.tensor([int(torch.nonzero(rows == row)[0, 0]) for row in group.rows])
            known = torch.cat([torch.stack([self.prompts[int(row)] for row in group.rows]), prefix[order]], 1)
            if known.shape[1] < group.seen:
                raise InputError(
                    "a row's prefix must not get shorter", found=f"{known.shape[1]} tokens, {group.seen} seen"
                )
            if known.shape[1] > group.seen:
                group.logits = self.model.feed(known[:, group.seen :], group.cache)
                group.seen = known.shape[1]
            assert group.logits is not None  # a prompt has at least one token
            answers.update(zip(order.tolist(), group.logits, strict=True))
        return torch.stack([answers[i] for i in range(len(rows))])

    def _split(self, rows: Tensor) -> list[Shared]:
        """Return groups that hold the asked rows and no other; what is left of a group stays for later."""
        asked, rest = [], []
        for group in self.groups:
            inside = torch.isin(group.rows, rows)
            if bool(inside.all()) or not bool(inside.any()):
                (asked if bool(inside.any()) else rest).append(group)
            else:
                asked.append(self._part(group, torch.nonzero(inside)[:, 0]))
                rest.append(self._part(group, torch.nonzero(~inside)[:, 0]))
        self.groups = asked + rest
        return asked

    def _part(self, group: Shared, index: Tensor) -> Shared:
        return Shared(
            rows=group.rows[index],
            cache=self.model.select(group.cache, index),
            seen=group.seen,
            logits=None if group.logits is None else group.logits[index],
        )
