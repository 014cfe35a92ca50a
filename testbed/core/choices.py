"""The only door to randomness: every draw an engine makes is `chooser.choose(probs)`.

One engine therefore has three lives. `RandomChooser` samples it; `ReplayChooser` walks every branch of its decision tree, so
that its *output law* is computed rather than estimated; `KeyedChooser` gives each (response, position) its own noise, so that
two engines which should agree token for token can be compared path by path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree

Result = TypeVar("Result")


class NotALaw(InputError):
    """Probabilities that are none: what a policy with weights gone to NaN or infinity offers."""


@runtime_checkable
class Chooser(Protocol):
    """Draws one index per row of a table of probabilities."""

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Return one index per row. `key` is (response, position); only keyed choosers read it."""
        ...


def checked(probs: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Return the probabilities in float64, or raise InputError if a row is not a law (tolerance 1e-6 on its sum)."""
    p = probs.double()
    if p.numel() and not (  # a NaN or an infinity fails the comparison with the sum
        float(p.min()) >= 0 and float((p.sum(-1) - 1).abs().max()) <= 1e-6
    ):
        raise NotALaw(
            "each row of `probs` must be non-negative and sum to 1",
            found=f"sums from {float(p.sum(-1).min()):.6g} to {float(p.sum(-1).max()):.6g}, least entry {float(p.min()):.6g}",
            hint="did you pass logits or log-probabilities?",
        )
    return p


def inverse_cdf(p: Float[Tensor, "B V"], u: Float[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Index of the first cumulative probability above u * total: never an index of probability zero.

    float64 throughout: in float32 the running sum forgets a tail of 1e-8 (BR-68).
    """
    total = p.cumsum(-1)
    index = torch.searchsorted(total, (u * total[:, -1])[:, None], right=True)[:, 0]
    if index.numel() and int(index.max()) == p.shape[-1]:  # rounding pushed u to the very end
        last = p.shape[-1] - 1 - (p > 0).flip(-1).to(torch.uint8).argmax(-1)
        index = torch.minimum(index, last)
    return index


class RandomChooser:
    """Samples with a torch Generator (or a seed, or a SeedTree).

    Examples
    --------
    >>> RandomChooser(0).choose(torch.tensor([[0.0, 1.0]]))
    tensor([1])
    """

    def __init__(self, source: torch.Generator | SeedTree | int) -> None:
        if isinstance(source, int):
            source = SeedTree(source)
        self.generator = source.torch_generator() if isinstance(source, SeedTree) else source

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Draw by inverse CDF in float64."""
        p = checked(probs)
        u = torch.rand(p.shape[0], generator=self.generator, dtype=torch.float64, device=p.device)
        return inverse_cdf(p, u)


class KeyedChooser:
    """Noise that depends on (seed, response, position) and on nothing else: draws Gumbel-max with keyed noise.

    Two engines that ask for the same key and the same law get the same token, in whatever order or batch they ask.

    Examples
    --------
    >>> key = torch.tensor([[3, 0], [3, 1]])
    >>> p = torch.full((2, 4), 0.25)
    >>> a = KeyedChooser(1).choose(p, key)
    >>> torch.equal(a, KeyedChooser(1).choose(p.flip(0), key.flip(0)).flip(0))
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._noise: dict[tuple[int, int, int], Tensor] = {}

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Return argmax(log p + Gumbel noise of the row's key)."""
        if key is None:
            raise InputError("a keyed chooser needs the (response, position) of each draw", found="no key")
        p = checked(probs)
        noise = torch.stack([self._gumbel(int(r), int(t), p.shape[-1]) for r, t in key.tolist()])
        return (p.log() + noise).argmax(-1)

    def _gumbel(self, response: int, position: int, size: int) -> Tensor:
        address = (response, position, size)
        if address not in self._noise:
            generator = SeedTree(self.seed)[response][position].torch_generator()
            u = torch.rand(size, generator=generator, dtype=torch.float64)
            self._noise[address] = -torch.log(-torch.log(u.clamp(min=1e-300)))
        return self._noise[address]


class ReplayChooser:
    """Walks every sequence of choices of a deterministic program, with the exact probability of each.

    Examples
    --------
    >>> def two_coins(chooser):
    ...     p = torch.tensor([[0.25, 0.75]])
    ...     return int(chooser.choose(p)) + int(chooser.choose(p))
    >>> [(r, round(float(p), 4)) for r, p in ReplayChooser.walk(two_coins)]
    [(0, 0.0625), (1, 0.1875), (1, 0.1875), (2, 0.5625)]
    """

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self._step = 0
        self.probability = 1.0
        self.trail: list[list[int]] = []  # per choice: the indices still possible, the one taken first

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Take the scripted branch of each row (the first possible one beyond the script)."""
        taken = []
        for row in checked(probs):
            possible = torch.nonzero(row > 0)[:, 0].tolist()
            index = self._script[self._step] if self._step < len(self._script) else possible[0]
            self.trail.append([index, *[i for i in possible if i > index]])
            self.probability *= float(row[index] / row.sum())
            self._step += 1
            taken.append(index)
        return torch.tensor(taken, dtype=torch.int64)

    @staticmethod
    def walk(program: Callable[[Chooser], Result], limit: int = 1_000_000) -> list[tuple[Result, float]]:
        """Run `program(chooser)` once per branch and return (result, probability) pairs; probabilities sum to 1.

        Raises
        ------
        InputError   if the program makes more than `limit` different runs
        """
        results: list[tuple[Result, float]] = []
        script: list[int] = []
        while True:
            if len(results) >= limit:
                raise InputError(
                    f"the decision tree must have at most {limit} branches",
                    found=f"more than {limit}",
                    hint="shorten the horizon or the vocabulary, or sample with RandomChooser",
                )
            chooser = ReplayChooser(script)
            results.append((program(chooser), chooser.probability))
            trail = chooser.trail
            while trail and len(trail[-1]) == 1:
                trail.pop()
            if not trail:
                return results
            script = [options[0] for options in trail[:-1]] + [trail[-1][1]]
