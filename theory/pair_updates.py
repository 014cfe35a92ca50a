"""Mean update of a group of two responses of a speculative world, from the law of what its engine writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import group_gradient
from theory.speculative_worlds import Prefix, Speculation

SIZE = 2  # responses of a group
Pair = tuple[Prefix, ...]
Trained = Callable[[SegmentedBatch], SegmentedBatch]


def expected_update(
    case: Speculation, law: Mapping[Pair, float], trained: Trained = lambda b: b
) -> tuple[Tensor, Tensor]:
    """Mean update of a group, by logit: the part of the first tokens, and that of the later ones.

    `trained` is what a trainer does to the rows of a group before it learns from them.
    """
    pairs = [y for pair in law for y in pair]
    tokens = torch.tensor([[*y, *[0] * (case.horizon - len(y))] for y in pairs])
    mask = torch.arange(case.horizon) < torch.tensor([len(y) for y in pairs])[:, None]
    group = torch.arange(len(law)).repeat_interleave(SIZE)
    zero = torch.zeros(tokens.shape, dtype=torch.float64)
    batch = SegmentedBatch(
        tokens=tokens, mask=mask, segment=torch.zeros_like(tokens), logp_target=zero, logp_behavior=zero,
        reward=case.env.reward(tokens, mask, group), group=group,
    )  # fmt: skip
    batch = SegmentedBatch.concatenated([trained(batch.select(rows)) for rows in torch.arange(len(pairs)).split(SIZE)])
    coefficient = group_gradient.group_coefficients(batch, "group_mean", normalizer="constant", constant=float(SIZE))
    coefficient = coefficient * torch.tensor(list(law.values()), dtype=torch.float64)[group][:, None]
    first = torch.arange(case.horizon) == 0
    pi = case.world.target
    return tuple(pi.score_terms(batch.tokens, coefficient * part).sum(0) for part in (first, ~first))  # type: ignore
