"""Keys and values of the tokens a decoder has seen, one row per response and one slot per position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.transformer.config import TransformerConfig


class KeyValueCache:
    """Rotated keys and values of every layer.

    A decoder of plain responses keeps a token in the slot of its position, and nothing is ever moved. A decoder of trees
    keeps rivals for one position side by side, and moves those that stay (`moved`).

    Parameters
    ----------
    config : TransformerConfig
    rows, slots : int             how many responses, how many positions each
    dtype, device : of the engine

    Examples
    --------
    >>> cache = KeyValueCache(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1), 2, 4, torch.float32)
    >>> new = torch.ones(1, 1, 2, 4)
    >>> key, value = cache.extended(0, torch.tensor([1]), torch.tensor([[2]]), new, new, 3)
    >>> key.shape, key[0, :, 0, 0].tolist()
    (torch.Size([1, 3, 2, 4]), [0.0, 0.0, 1.0])
    """

    def __init__(
        self, config: TransformerConfig, rows: int, slots: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        shape = (rows, slots, config.kept_heads, config.head_width)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    @property
    def slots(self) -> int:
        """Positions there is room for."""
        return self.keys[0].shape[1]

    def extended(
        self,
        layer: int,
        rows: Int64[Tensor, " b"] | None,
        slots: Int64[Tensor, "b c"],
        key: Float[Tensor, "b c H D"],
        value: Float[Tensor, "b c H D"],
        used: int,
    ) -> tuple[Float[Tensor, "b S H D"], Float[Tensor, "b S H D"]]:
        """Write new tokens into their slots and return the first `used` slots of these rows.

        Without `rows` they are the first ones, and what is returned is a view.
        """
        out = []
        at = torch.arange(len(slots), device=slots.device) if rows is None else rows
        for store, new in ((self.keys[layer], key), (self.values[layer], value)):
            store[at[:, None], slots] = new
            out.append(store[: len(slots), :used] if rows is None else store[at, :used])
        return out[0], out[1]

    def moved(self, source: Int64[Tensor, "b k"], slots: Int64[Tensor, "b k"]) -> None:
        """Copy every row's source slots to its target slots, in place; all are read before one is written."""
        rows = torch.arange(len(source), device=source.device)[:, None]
        for store in (*self.keys, *self.values):
            store[rows, slots] = store[rows, source]

    def only(self, rows: Int64[Tensor, " b"]) -> None:
        """Forget all rows but these, which come to stand in this order."""
        for store in (self.keys, self.values):
            store[:] = [x.index_select(0, rows) for x in store]

    def exchange(self, some: list[int], others: list[int]) -> None:
        """Let rows change places, pair by pair."""
        here, there = some + others, others + some
        for store in (*self.keys, *self.values):
            store[here] = store[there]

    def grow(self, slots: int) -> None:
        """Make room for at least this many positions; twice as many as before, so that a row is seldom copied."""
        if slots > self.slots:
            missing = max(slots, 2 * self.slots) - self.slots
            for store in (self.keys, self.values):
                store[:] = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing)) for x in store]
