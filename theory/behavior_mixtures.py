"""Finite laws drawn by several behaviors: instances for claims about weights that share a response among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from testbed.sample_data import next_token_laws
from theory.worlds import STREAM


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A target, J behaviors with n_j responses each, a function f, and ways to share responses among the behaviors.

    Attributes
    ----------
    target, values : [N]          log p (nats) and f
    behaviors : [J, N]            log q_j; -inf where behavior j cannot draw
    counts : [J]
    partitions : [K, J, N]        shares omega_j(y) to compare the balance heuristic with
    """

    name: str
    target: Tensor
    behaviors: Tensor
    counts: Tensor
    values: Tensor
    partitions: Tensor

    @property
    def drawn(self) -> Tensor:
        """Where behavior j can draw the response, [J, N]."""
        return self.behaviors > -torch.inf


def mixture(
    name: str,
    target: Sequence[float],
    behaviors: Sequence[Sequence[float]],
    counts: Sequence[float],
    values: Sequence[float],
    partitions: Any = None,
) -> Mixture:
    """Build from probabilities; partitions default to those of `usual_partitions`."""
    p, q, n = (torch.tensor(x, dtype=torch.float64) for x in (target, behaviors, counts))
    shares = usual_partitions(name, q, n) if partitions is None else torch.tensor(partitions, dtype=torch.float64)
    f = torch.tensor(values, dtype=torch.float64)
    return Mixture(name=name, target=p.log(), behaviors=q.log(), counts=n, values=f, partitions=shares)


def usual_partitions(name: str, q: Tensor, n: Tensor) -> Tensor:
    """By number of responses (each keeps its own ratio), alike, by square (power heuristic), by maximum, and at random.

    All are confined to what a behavior can draw.
    """
    noise = torch.rand(q.shape, generator=STREAM[name]["shares"].torch_generator(), dtype=torch.float64)
    part = n[:, None] * q
    best = (part == part.amax(0)).double()
    raw = torch.stack([n[:, None].expand_as(q), torch.ones_like(q), part**2, best, noise]) * (q > 0)
    total = raw.sum(1, keepdim=True)
    return torch.where(total > 0, raw / torch.where(total > 0, total, 1.0), 0.0)


def random_mixture(
    name: str, outcomes: int, counts: Sequence[float], *, signed: bool = False, first: bool = False
) -> Mixture:
    """Random laws addressed by the name; with `first` the first behavior is the target."""
    generator = STREAM[name]["mixture"].torch_generator()
    logits = 1.5 * torch.randn((len(counts) + 1, outcomes), generator=generator, dtype=torch.float64)
    values = torch.rand(outcomes, generator=generator, dtype=torch.float64)
    laws = torch.softmax(logits, -1).tolist()
    behaviors = [laws[0], *laws[2:]] if first else laws[1:]
    return mixture(name, laws[0], behaviors, counts, (2 * values - 1 if signed else values).tolist())


def recorded_mixture(position: int, names: Sequence[str], counts: Sequence[float]) -> Mixture:
    """Next-token laws a language model really had: behaviors of one position, f = 1 for the target's likeliest word."""
    laws = next_token_laws()
    p, q = laws.logp_target[position], torch.stack([laws.logp_behavior[b][position] for b in names])
    name, n, f = f"smollm2_{position:02d}", torch.tensor(counts, dtype=torch.float64), torch.zeros_like(p)
    f[0] = 1.0
    partitions = usual_partitions(name, q.exp(), n)
    return Mixture(name=name, target=p, behaviors=q, counts=n, values=f, partitions=partitions)
