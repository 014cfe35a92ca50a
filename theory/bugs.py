"""Bugs that several theorems plant: each makes one library function wrong in a way public code has been wrong.

Every function here takes the right function and returns the wrong one; use with `theory.planting.planted`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.prefix_order import node_index
from testbed.exact import law as exact_law
from testbed.exact.law import ExactLaw
from testbed.policies.schedule import PrefixSchedule, one
from testbed.weighting import granularity
from theory.planting import planted


def ratio_inverted() -> AbstractContextManager[None]:
    """Make `log_ratios` return behavior minus target."""
    return planted(granularity, "log_ratios", lambda right: lambda *a, **k: -right(*a, **k))


def last_segment_only() -> AbstractContextManager[None]:
    """Make `log_ratios` take the ratios of every segment but the newest to be 1."""

    def make(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrong(batch: SegmentedBatch, granularity: str = "token", **kw: Any) -> Tensor:
            newest = batch.segment == batch.segment.max(1, keepdim=True).values
            target = torch.where(newest, batch.logp_target, batch.logp_behavior)
            return right(batch.replaced(logp_target=target), granularity, **kw)

        return wrong

    return planted(granularity, "log_ratios", make)


def labels_shifted() -> AbstractContextManager[None]:
    """Make the sampler record each token's log-prob under the behavior of the token before it."""
    return planted(
        exact_law, "enumerate_law", _recorder(lambda s, last: torch.cat([s[:, :1], s[:, :-1]], 1).clamp(min=0))
    )


def all_labeled_newest() -> AbstractContextManager[None]:
    """Make the sampler record every token's log-prob under the newest behavior."""
    return planted(exact_law, "enumerate_law", _recorder(torch.full_like))


def _recorder(relabel: Callable[[Tensor, int], Tensor]) -> Callable[[Callable[..., ExactLaw]], Callable[..., ExactLaw]]:
    def make(right: Callable[..., ExactLaw]) -> Callable[..., ExactLaw]:
        def wrong(env: Any, target: Any, schedule: Any) -> ExactLaw:
            law = right(env, target, schedule)
            if not isinstance(schedule, PrefixSchedule):
                return law
            batch, v, t = law.batch, env.vocab_size, env.horizon
            label = relabel(batch.segment, len(schedule.policies) - 1)
            tables = torch.stack([PrefixSchedule((p,), one()).log_prob_table(v, t) for p in schedule.policies])
            recorded = tables[label, node_index(batch.tokens, v), batch.tokens]
            return ExactLaw(batch=batch.replaced(logp_behavior=recorded), log_prob=law.log_prob, branch=law.branch)

        return wrong

    return make
