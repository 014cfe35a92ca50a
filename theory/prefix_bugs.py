"""Bugs in prefix products that S3 and S4 plant (see `theory.planting`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.weighting import granularity
from theory.planting import planted


def prefix_before_the_token() -> AbstractContextManager[None]:
    """Make `log_ratios` return the product through t-1 as the prefix product of t."""

    def make(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrong(batch: SegmentedBatch, granularity: str = "token", **kw: Any) -> Tensor:
            found = right(batch, granularity, **kw)
            if granularity != "prefix":
                return found
            earlier = torch.cat([torch.zeros_like(found[:, :1]), found[:, :-1]], 1)
            return torch.where(batch.mask, earlier, 0.0)

        return wrong

    return planted(granularity, "log_ratios", make)


def segment_prefix_forgets_earlier() -> AbstractContextManager[None]:
    """Make `log_ratios` return the product over t's own segment as the product through its end."""

    def make(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrong(batch: SegmentedBatch, granularity: str = "token", **kw: Any) -> Tensor:
            return right(batch, "segment" if granularity == "segment_prefix" else granularity, **kw)

        return wrong

    return planted(granularity, "log_ratios", make)
