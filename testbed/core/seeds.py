"""Named random streams: a stream is addressed by words, never by a counter or by the order of calls.

`SeedTree("study")["rollout"]["prompt-3"]` is the same stream in every process, subset of tests and number of workers,
and differs from every other address (seeds are SHA-256 of the address, fed to numpy's `SeedSequence`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch


@runtime_checkable
class HashState(Protocol):
    """A hash under way, such as `hashlib.sha256` makes."""

    def update(self, data: bytes, /) -> None:
        """Take in more bytes."""
        ...

    def digest(self) -> bytes:
        """Return the hash of the bytes so far."""
        ...

    def copy(self) -> HashState:
        """Return one that goes on separately."""
        ...


def seed_of(state: HashState) -> int:
    """Return the 63-bit integer seed that a hashed address stands for."""
    return int.from_bytes(state.digest()[:8], "big") >> 1


def fed(state: HashState, name: str, *, child: bool = True) -> HashState:
    """Return the hash of a child's address, or of this address continued by more of its last name.

    Examples
    --------
    >>> tree = SeedTree("demo")["rows"]
    >>> seed_of(fed(fed(tree.hash_state(), "row"), "-3", child=False)) == tree["row-3"].integer()
    True
    """
    longer = state.copy()
    longer.update(("\x1f" + name if child else name).encode())
    return longer


@dataclass(frozen=True, slots=True)
class SeedTree:
    """A node in a tree of named streams.

    Examples
    --------
    >>> root = SeedTree("demo")
    >>> root["a"].integer() == SeedTree("demo")["a"].integer(), root["a"].integer() == root["b"].integer()
    (True, False)
    """

    root: str | int
    path: tuple[str, ...] = ()

    def __getitem__(self, name: str | int) -> SeedTree:
        """Return the child stream of this name."""
        return SeedTree(self.root, (*self.path, str(name)))

    def hash_state(self) -> HashState:
        """Return the hash of this address, to be fed the names below it (see `fed`) without hashing the address again."""
        return hashlib.sha256("\x1f".join([repr(self.root), *self.path]).encode())

    def integer(self) -> int:
        """Return a 63-bit integer seed for this address."""
        return seed_of(self.hash_state())

    def numpy_generator(self) -> np.random.Generator:
        """Return a fresh numpy Generator for this address."""
        import numpy as np

        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.integer())))

    def torch_generator(self, device: str = "cpu") -> torch.Generator:
        """Return a fresh torch Generator for this address."""
        import torch

        return torch.Generator(device).manual_seed(self.integer())
