"""Random streams of noise: one per prefix, so that whoever asks about a prefix, whenever, gets the same noise.

A row's stream has the address (seed, ..., prefix). Addresses are hashed incrementally: a response of T tokens costs T hash
updates, not T^2, and has the numbers of hashing every prefix by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.seeds import HashState, SeedTree, fed, seed_of


@dataclass(frozen=True, slots=True)
class NoiseStreams:
    """One stream per row of a table of laws.

    Examples
    --------
    >>> streams = NoiseStreams.of(SeedTree("demo"), [(), (0,), ()])
    >>> first, second, third = streams.normal(2)
    >>> torch.equal(first, third), torch.equal(first, second)
    (True, False)
    """

    states: Sequence[HashState]

    @staticmethod
    def of(tree: SeedTree, keys: Sequence[tuple[int, ...]]) -> NoiseStreams:
        """Return the streams tree[str(key)], one per key."""
        above = tree.hash_state()
        return NoiseStreams([fed(above, str(key)) for key in keys])

    def child(self, name: str) -> NoiseStreams:
        """Return every row's stream of this name, independent of the row's own and of its other children."""
        return NoiseStreams([fed(state, name) for state in self.states])

    def normal(self, size: int) -> Float[Tensor, "N V"]:
        """Draw standard normals, float64."""
        return self._rows(torch.randn, size)

    def uniform(self, size: int) -> Float[Tensor, "N V"]:
        """Draw uniforms inside (0, 1), float64: multiples of 2^-53 moved up by half of one, so that 0 and 1 never occur."""
        return (self._rows(torch.rand, size) + 2.0**-54).clamp(max=1 - 2.0**-53)

    def _rows(self, draw: object, size: int) -> Tensor:
        generator, drawn = torch.Generator(), torch.empty(len(self.states), size, dtype=torch.float64)
        first: dict[int, Tensor] = {}  # responses of a group share prefixes, and seeding is what takes the time
        for row, state in zip(drawn, self.states, strict=True):
            seed = seed_of(state)
            if seed in first:
                row.copy_(first[seed])
                continue
            generator.manual_seed(seed)
            row.copy_(draw(size, generator=generator, dtype=torch.float64))  # pyright: ignore[reportCallIssue]
            first[seed] = row
        return drawn


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """The address of a prefix that may grow: `PrefixKey.of(tree).then([4, 2]).state()` is that of tree["(4, 2)"].

    Examples
    --------
    >>> tree = SeedTree("demo")
    >>> [seed_of(PrefixKey.of(tree).then(p).state()) == tree[str(tuple(p))].integer() for p in ([], [7], [7, 1])]
    [True, True, True]
    """

    so_far: HashState
    length: int = 0

    @staticmethod
    def of(tree: SeedTree) -> PrefixKey:
        """Return the key of the empty prefix."""
        return PrefixKey(fed(tree.hash_state(), "("))

    def then(self, tokens: Sequence[int]) -> PrefixKey:
        """Return the key of the prefix continued by these tokens."""
        if not tokens:
            return self
        text = (", " if self.length else "") + ", ".join(map(str, tokens))
        return PrefixKey(fed(self.so_far, text, child=False), self.length + len(tokens))

    def state(self) -> HashState:
        """Return the hash of the whole address."""
        return fed(self.so_far, ",)" if self.length == 1 else ")", child=False)
