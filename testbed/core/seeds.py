"""Named random streams: a stream is addressed by words, never by a counter or by the order of calls.

`SeedTree("study")["rollout"]["prompt-3"]` is the same stream in every process, subset of tests and number of workers,
and differs from every other address (seeds are SHA-256 of the address, fed to numpy's `SeedSequence`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


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

    def integer(self) -> int:
        """Return a 63-bit integer seed for this address."""
        address = "\x1f".join([repr(self.root), *self.path]).encode()
        return int.from_bytes(hashlib.sha256(address).digest()[:8], "big") >> 1

    def numpy_generator(self) -> np.random.Generator:
        """Return a fresh numpy Generator for this address."""
        import numpy as np

        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.integer())))

    def torch_generator(self, device: str = "cpu") -> torch.Generator:
        """Return a fresh torch Generator for this address."""
        import torch

        return torch.Generator(device).manual_seed(self.integer())
