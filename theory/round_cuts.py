"""What is kept of a speculative engine's responses when the engine is not waited for: the first, the finished, the beginnings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import Any

import torch
from torch import Tensor

from testbed.core.choices import Chooser, ReplayChooser
from testbed.rollout import cut_batches
from theory.speculative_worlds import Prefix, Speculation, written


@dataclass(frozen=True, slots=True)
class Done:
    """A response, its probability, its recorded ratio, and how many tokens it had after each pass."""

    response: Prefix
    tokens: tuple[int, ...]
    probability: float
    ratio: float

    @property
    def passes(self) -> int:
        """Passes until it was done; the pass over the prompt, which gives the first token, is one."""
        return len(self.tokens)

    def after(self, passes: int) -> Prefix:
        """What there is of it after so many passes."""
        return self.response[: self.tokens[min(passes, len(self.tokens)) - 1]]


def finished(case: Speculation, nodes: int) -> list[Done]:
    """Every way in which the engine writes one response."""

    def run(chooser: Chooser) -> tuple[Prefix, tuple[int, ...], float]:
        seen: list[Any] = []  # rounds; the pass over the prompt comes before them
        drafter = (lambda: case.heads(1)) if nodes else None
        batch = case.speculated(1, chooser, drafter, nodes=nodes, watch=seen.append, target=case.policy)
        tokens = accumulate([1, *[int(one.emitted.sum()) for one in seen]])
        return written(batch)[0], tuple(tokens), float((batch.logp_target - batch.logp_behavior).sum().exp())

    return [Done(y, tokens, probability, ratio) for (y, tokens, ratio), probability in ReplayChooser.walk(run)]


def law_of_first(case: Speculation, done: Sequence[Done], n: int, kept: int) -> Tensor:
    """Law of a response that is among the first to be done, of n independent ones (V3); ties at random."""
    law: dict[Prefix, float] = defaultdict(float)
    for batch in product(done, repeat=n):
        passes, joint = torch.tensor([one.passes for one in batch]), prod(one.probability for one in batch)
        for rows, chance in ReplayChooser.walk(lambda c: cut_batches.first_to_end(passes, kept, c).tolist()):  # noqa: B023
            for row in rows:
                law[batch[row].response] += joint * chance / kept
    return vector(law, case.responses())


def law_of_finished(case: Speculation, done: Sequence[Done], passes: int) -> Tensor | None:
    """Law of a response, given that it is done after so many passes; None if that never happens."""
    law: dict[Prefix, float] = defaultdict(float)
    for one in done:
        law[one.response] += one.probability * (one.passes <= passes)
    total = sum(law.values())
    return vector(law, case.responses()) / total if total else None


def law_of_beginnings(case: Speculation, done: Sequence[Done], passes: int) -> Tensor:
    """Law of what there is of a response after so many passes, over everything that could be there."""
    law: dict[Prefix, float] = defaultdict(float)
    for one in done:
        law[one.after(passes)] += one.probability
    every = [h for h in product_up_to(case.horizon) if h]
    return vector(law, every)


def law_of_resumed(case: Speculation, done: Sequence[Done], passes: int, dropped: int = 0) -> Tensor:
    """Law of a response that is paused after so many passes, less the last `dropped` tokens, and gone on with by the target."""
    law: dict[Prefix, float] = defaultdict(float)
    for one in done:
        h = one.after(passes)
        if one.passes > passes:
            h = h[: len(h) - dropped]
        for y in case.responses():
            if y[: len(h)] == h:
                law[y] += one.probability * prod(float(case.laws[y[:t]][y[t]].exp()) for t in range(len(h), len(y)))
    return vector(law, case.responses())


def product_up_to(horizon: int) -> Iterable[Prefix]:
    """Every sequence of at most so many of two tokens, short ones first."""
    return (h for t in range(horizon + 1) for h in product((0, 1), repeat=t))


def vector(law: Mapping[Prefix, float], outcomes: Sequence[Prefix]) -> Tensor:
    """Probabilities in the order of the outcomes."""
    return torch.tensor([law.get(y, 0.0) for y in outcomes], dtype=torch.float64)
