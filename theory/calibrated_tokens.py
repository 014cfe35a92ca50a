"""Tokens drawn under the calibrated noise: one probability of the trainer per range of confidence, all displacements it may have.

The law of the displacement is on a grid, so that means over drawn tokens are sums; as a batch, the tokens can be given to any
rule of the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.policies.noise.calibration import RUNNER_UP, confidence_profile, moe_noise
from testbed.policies.noise.displacement import displacement_law
from testbed.policies.noise.reported import CONFIDENCE_NAMES
from testbed.policies.noise.scale_mixture import ScaleMixture


@dataclass(frozen=True, kw_only=True)
class DrawnTokens:
    """Tokens of some confidences [R] under one noise, at every displacement [E] of the grid.

    Attributes
    ----------
    names : tuple of str     what the rows are called
    batch : SegmentedBatch   [R, E]: log p and log q of a token with the row's p and the column's displacement
    mass : Tensor            [R, E]: chance of the displacement, given that a token of the row was drawn; rows sum to 1
    share : Tensor           [R]: share of the row in all drawn tokens
    """

    names: tuple[str, ...]
    batch: SegmentedBatch
    mass: Tensor
    share: Tensor

    def by_row(self, values: Tensor) -> Tensor:
        """Mean over the drawn tokens of each row."""
        return (self.mass * values).sum(1)

    def overall(self, values: Tensor) -> float:
        """Mean over all drawn tokens."""
        return float((self.share * self.by_row(values)).sum())


def drawn_tokens(
    noise: ScaleMixture, uncertainty: Sequence[float], share: Sequence[float], names: Sequence[str], runner_up: float
) -> DrawnTokens:
    """Lay out the tokens of these 1 - p under a noise.

    Examples
    --------
    >>> found = drawn_tokens(ScaleMixture((0.1,), (1.0,)), [0.5, 0.01], [0.25, 0.75], ["doubtful", "sure"], 1.0)
    >>> found.overall(torch.ones_like(found.mass))
    1.0
    """
    laws = [displacement_law(noise, u, runner_up) for u in uncertainty]
    p = torch.tensor([[1 - u] for u in uncertainty], dtype=torch.float64)
    doubt = torch.tensor([[u] for u in uncertainty], dtype=torch.float64)
    eps = torch.from_numpy(np.stack([law.values for law in laws]))
    log_p = torch.log1p(-doubt).expand_as(eps)
    log_k = torch.logaddexp(p.log(), doubt.log() + eps)
    return DrawnTokens(
        names=tuple(names),
        batch=one_segment(log_p, (log_p - log_k).clamp(max=0.0)),
        mass=torch.from_numpy(np.stack([law.mass for law in laws])),
        share=torch.tensor(list(share), dtype=torch.float64),
    )


def one_segment(log_p: Tensor, log_q: Tensor) -> SegmentedBatch:
    """Tokens that one sampler drew, from their log-probabilities [R, E]; their names and rewards play no part."""
    nothing = torch.zeros(log_p.shape, dtype=torch.int64)
    return SegmentedBatch(
        tokens=nothing, mask=nothing == 0, segment=nothing, logp_target=log_p.contiguous(), logp_behavior=log_q,
        reward=torch.zeros(len(log_p), dtype=torch.float64), group=nothing[:, 0],
    )  # fmt: skip


@lru_cache(maxsize=1)
def moe_tokens() -> DrawnTokens:
    """Tokens of the calibrated mixture of experts, in the ranges of confidence of CIS Table 7.

    Examples
    --------
    >>> found = moe_tokens()
    >>> found.names[0], round(found.overall(torch.ones_like(found.mass)), 12)
    ('p<0.5', 1.0)
    """
    profile = confidence_profile()
    return drawn_tokens(moe_noise().mixture, profile.uncertainty, profile.shares, CONFIDENCE_NAMES, RUNNER_UP)
