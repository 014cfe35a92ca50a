"""Responses under way, one row each, with the version that wrote every token; rows are used again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

FIELDS = ("tokens", "version", "logp", "written", "group")


class ResponseTable:
    """Tokens, versions, recorded log-probabilities and prompt of each response that is held.

    Parameters
    ----------
    horizon : int     most tokens of a response

    Examples
    --------
    >>> table = ResponseTable(horizon=2)
    >>> table.add([7, 8], [0, 0])
    >>> row = table.rows([8])
    >>> table.write(row, torch.tensor([5]), 3, torch.tensor([-0.5], dtype=torch.float64))
    >>> table.lengths(), table.version[row].tolist()
    ({7: 0, 8: 1}, [[3, -1]])
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.tokens = torch.zeros(0, horizon, dtype=torch.int64)
        self.version = torch.full((0, horizon), -1, dtype=torch.int64)
        self.logp = torch.zeros(0, horizon, dtype=torch.float64)
        self.written = torch.zeros(0, dtype=torch.int64)
        self.group = torch.zeros(0, dtype=torch.int64)
        self.row: dict[int, int] = {}  # of each response held
        self.free: list[int] = []

    def add(self, ids: Sequence[int], group: Sequence[int]) -> None:
        """Give a row to each new response."""
        if len(ids) > len(self.free):
            self._grow(max(len(ids), len(self.written)))
        taken = [self.free.pop() for _ in ids]
        self.row.update(zip(ids, taken, strict=True))
        rows = torch.tensor(taken, dtype=torch.int64)
        self.tokens[rows], self.version[rows], self.logp[rows], self.written[rows] = 0, -1, 0.0, 0
        self.group[rows] = torch.tensor(list(group), dtype=torch.int64)

    def _grow(self, more: int) -> None:
        size = len(self.written)
        for name in FIELDS:
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, torch.zeros(more, *old.shape[1:], dtype=old.dtype)]))
        self.free += range(size + more - 1, size - 1, -1)

    def rows(self, ids: Iterable[int]) -> Int64[Tensor, " b"]:
        """Row of each response."""
        return torch.tensor([self.row[i] for i in ids], dtype=torch.int64)

    def write(
        self,
        rows: Int64[Tensor, " b"],
        tokens: Int64[Tensor, " b"],
        version: int | Int64[Tensor, " b"],
        logp: Float[Tensor, " b"],
    ) -> None:
        """Write the next token of each response."""
        at = self.written[rows]
        self.tokens[rows, at], self.version[rows, at], self.logp[rows, at] = tokens, version, logp
        self.written[rows] = at + 1

    def mask(self, rows: Int64[Tensor, " b"]) -> Bool[Tensor, "b T"]:
        """Which positions hold a token."""
        return torch.arange(self.horizon) < self.written[rows, None]

    def release(self, ids: Iterable[int]) -> None:
        """Forget responses."""
        self.free += [self.row.pop(i) for i in ids]

    def lengths(self) -> dict[int, int]:
        """Tokens written of each response held."""
        return dict(zip(self.row, self.written[self.rows(self.row)].tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Return tensors and plain values, copied."""
        tensors = {name: getattr(self, name).clone() for name in FIELDS}
        return tensors | {"ids": list(self.row), "rows": list(self.row.values()), "free": list(self.free)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        for name in FIELDS:
            setattr(self, name, state[name].clone())
        self.row = dict(zip(state["ids"], state["rows"], strict=True))
        self.free = list(state["free"])
