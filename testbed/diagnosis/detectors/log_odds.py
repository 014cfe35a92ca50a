"""Log-odds of drawn tokens under the trainer and under the sampler: the coordinates in which engine noise has one scale."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.numerics import log1m_exp
from testbed.weighting.confidence import displacement


def log_odds(logp: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return log p/(1-p), +-inf at the ends."""
    value = logp.double()
    return value - log1m_exp(value)


def trainer_log_probs(batch: SegmentedBatch) -> tuple[Float[Tensor, "B T"], bool]:
    """Return the log-probs nearest to the sampler's (proximal where recorded), and whether they are the proximal policy's."""
    if batch.logp_proximal is not None:
        return batch.logp_proximal.double(), True
    return batch.logp_target.double(), False


def displaced(
    batch: SegmentedBatch, above: Float[Tensor, "B T"], below: Float[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Displacement from `below` to `above`, the mean of the two log-odds, and where both are finite; 0 elsewhere."""
    shift = displacement(above.double(), below.double())
    middle = (log_odds(above) + log_odds(below)) / 2
    usable = batch.mask & shift.isfinite() & middle.isfinite()
    zero = torch.zeros((), dtype=shift.dtype)
    return torch.where(usable, shift, zero), torch.where(usable, middle, zero), usable
