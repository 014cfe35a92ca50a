"""What is known of a mismatch: drawn tokens with two log-probabilities, and perturbed logits at some positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from testbed.weighting.confidence import displacement

Array = np.ndarray
EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)  # of the trainer's probability, as in table 7
BINS = ("p<0.5", "0.5-0.9", "0.9-0.99", "0.99-0.999", "p>0.999")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Tokens drawn by a sampler and scored by a trainer.

    Parameters
    ----------
    name : str                           which engines
    model : str                          "Dense" or "MoE": the column of the paper it stands beside
    response : Int64 [N]                 which response each token belongs to; responses are exchangeable
    logp_target, logp_behavior [N]       nats
    finite : Bool [N]                    whether the log-odds are finite in float32 engines
    """

    name: str
    model: str
    response: Array
    logp_target: Array
    logp_behavior: Array
    finite: Array

    def __len__(self) -> int:
        return len(self.response)

    @property
    def log_k(self) -> Array:
        """Log of the mismatch ratio, nats."""
        return self.logp_target - self.logp_behavior

    @property
    def doubt(self) -> Array:
        """1 - p, p the trainer's probability of the drawn token."""
        return -np.expm1(self.logp_target)

    @property
    def epsilon(self) -> Array:
        """Displacement of the log-odds, nats."""
        return displacement(torch.from_numpy(self.logp_target), torch.from_numpy(self.logp_behavior)).numpy()

    @property
    def bin(self) -> Array:
        """Which of BINS the trainer's probability falls into; compared through 1 - p, so that none is lost near 1."""
        return np.searchsorted(-(1 - np.array(EDGES[1:-1])), -self.doubt, side="right")

    def of(self, index: Array) -> TokenSample:
        """Return the tokens at these positions."""
        return TokenSample(
            name=self.name,
            model=self.model,
            response=self.response[index],
            logp_target=self.logp_target[index],
            logp_behavior=self.logp_behavior[index],
            finite=self.finite[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSample:
    """Perturbed logits: trainer's minus sampler's, for some tokens of the vocabulary at some positions.

    Parameters
    ----------
    name, model        as in TokenSample
    entries : str      which logits were kept, in words
    response [N]       response of each entry; responses are exchangeable
    position [N]       number of the prefix each entry belongs to
    delta [N]          nats
    flips [N]          layers that routed the prefix's last token differently in the two engines; None if dense
    rank [N]           how many tokens of the position the sampler finds likelier; None if the entries have no order
    """

    name: str
    model: str
    entries: str
    response: Array
    position: Array
    delta: Array
    flips: Array | None = None
    rank: Array | None = None

    def __len__(self) -> int:
        return len(self.delta)

    def of(self, index: Array) -> NoiseSample:
        """Return the entries at these positions."""
        return NoiseSample(
            name=self.name,
            model=self.model,
            entries=self.entries,
            response=self.response[index],
            position=self.position[index],
            delta=self.delta[index],
            flips=None if self.flips is None else self.flips[index],
            rank=None if self.rank is None else self.rank[index],
        )


def resampled(response: Array, seeds: np.random.Generator, resamples: int) -> Iterator[Array]:
    """Yield index arrays of `resamples` bootstrap draws of whole responses.

    Examples
    --------
    >>> draws = list(resampled(np.array([5, 5, 7]), np.random.Generator(np.random.PCG64(0)), 50))
    >>> {len(d) for d in draws} <= {2, 3, 4}, len(draws)
    (True, 50)
    """
    order = np.argsort(response, kind="stable")
    _, first, count = np.unique(response[order], return_index=True, return_counts=True)
    for _ in range(resamples):
        chosen = seeds.integers(0, len(first), len(first))
        length = count[chosen]
        offset = np.repeat(first[chosen] - (length.cumsum() - length), length)
        yield order[offset + np.arange(length.sum())]
