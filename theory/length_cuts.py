"""Batches cut by the clock, as the theorems see them: who starts, how many are kept, and the exact law of a kept response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.exact.output_law import output_law
from testbed.policies.tabular import TabularPolicy
from testbed.rollout import cut_batches
from testbed.weighting.rules import weigh
from theory.worlds import STREAM, World, world

Response = tuple[int, ...]
Kept = tuple[tuple[Response, float], ...]  # responses of one batch with the weight their recorded ratios give


@dataclass(frozen=True, kw_only=True)
class Cut:
    """n on-policy responses start and m are kept; `loses` says whether some lengths are favored (m < n, lengths differ)."""

    name: str
    world: World
    n: int
    m: int
    loses: bool = True


def cut(
    name: str, n: int, m: int, loses: bool = True, *, tokens: int = 2, horizon: int = 2, eos: int | None = 1
) -> Cut:
    """Build a world in which the sampler is the target, and the cut."""
    pi = TabularPolicy.random(tokens, horizon, STREAM["cut"][name], scale=0.5)
    return Cut(name=name, world=world(name, tokens, horizon, eos=eos, target=pi, policies=(pi,)), n=n, m=m, loses=loses)


def first_m(c: Cut, chooser: Chooser) -> Kept:
    """Sampler of the theorem: the first m to end."""
    batch = cut_batches.finished_first(c.world.env, c.world.schedule, c.n, c.m, chooser, target=c.world.target)
    ratios = weigh("sequence_product", batch).value[:, 0].tolist()
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), ratios, strict=True)
    return tuple(sorted((tuple(y[:k]), r) for y, k, r in rows))


def random_m(c: Cut, chooser: Chooser) -> Kept:
    """Control: m of n responses kept at random, whenever they end."""
    rows = cut_batches.first_to_end(torch.zeros(c.n, dtype=torch.int64), c.m, chooser).tolist()
    everything = first_m(Cut(name=c.name, world=c.world, n=c.n, m=c.n), chooser)
    return tuple(everything[i] for i in rows)


def law_of_kept(c: Cut, sampler: Callable[[Cut, Chooser], Kept] = first_m) -> tuple[Tensor, list[float]]:
    """Probability that a kept response is each one of the target's law, and all weights that were recorded.

    Examples
    --------
    >>> probs, recorded = law_of_kept(cut("example", 2, 1))
    >>> round(float(probs.sum()), 12), [round(r, 12) for r in recorded]
    (1.0, [1.0])
    """
    probs: Counter[Response] = Counter()
    recorded: set[float] = set()
    for batch, prob in output_law(lambda chooser: sampler(c, chooser)).items():
        for y, ratio in batch:
            probs[y] += prob / c.m
            recorded.add(ratio)
    law = c.world.target_law.batch
    rows = zip(law.tokens.tolist(), law.lengths.tolist(), strict=True)
    return torch.tensor([probs[tuple(y[:k])] for y, k in rows], dtype=torch.float64), sorted(recorded)
