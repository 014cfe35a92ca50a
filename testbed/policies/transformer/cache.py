"""Keys and values of the tokens a decoder has seen, one row per response and one slot per position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.transformer.config import TransformerConfig


class KeyValueCache:
    """Rotated keys and values of every layer; slot = position, so that nothing is ever moved.

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
        shape = (rows, slots, config.heads, config.head_width)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    @property
    def slots(self) -> int:
        """Positions there is room for."""
        return self.keys[0].shape[1]

    def extended(
        self,
        layer: int,
        rows: Int64[Tensor, " b"],
        positions: Int64[Tensor, "b c"],
        key: Float[Tensor, "b c H D"],
        value: Float[Tensor, "b c H D"],
        used: int,
    ) -> tuple[Float[Tensor, "b S H D"], Float[Tensor, "b S H D"]]:
        """Write new tokens into their slots and return the first `used` slots of these rows."""
        out = []
        for store, new in ((self.keys[layer], key), (self.values[layer], value)):
            store[rows[:, None], positions] = new
            out.append(store[rows, :used])
        return out[0], out[1]

    def grow(self, slots: int) -> None:
        """Make room for at least this many positions."""
        missing = slots - self.slots
        if missing > 0:
            for store in (self.keys, self.values):
                store[:] = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing)) for x in store]
