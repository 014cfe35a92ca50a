"""What is noted of every update: did it go well, how far apart were the policies, what did the rule do about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.numerics import masked_mean
from testbed.rollout.staleness import staleness
from testbed.stats.weight_statistics import ess
from testbed.weighting.weights import Weights

OLDEST = 32  # staleness of this many updates and more is counted together


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """Numbers of one batch, before its first optimizer step.

    reward          mean reward of the batch: of the policies that wrote it
    length          mean number of tokens
    entropy         mean entropy of the trainer's laws at the tokens, nats
    max_log_k       largest |log proximal - log behavior| of a token, nats: mismatch of engines and staleness together
    acted           share of tokens whose ratio the rule changed or rejected
    ess_raw, ess_applied   effective share of the tokens, by ratios and by weights as applied
    mean_weight     mean weight as applied
    staleness       mean over responses, in updates, of the oldest token
    ages            responses by staleness 0, 1, ..., OLDEST and more
    segments        mean number of versions that wrote a response
    """

    reward: float
    length: float
    entropy: float
    max_log_k: float
    acted: float
    ess_raw: float
    ess_applied: float
    mean_weight: float
    staleness: float
    ages: list[int]
    segments: float


def batch_metrics(batch: SegmentedBatch, weights: Weights, laws: Float[Tensor, "B T V"], current: int) -> BatchMetrics:
    """Measure a batch.

    Parameters
    ----------
    batch : SegmentedBatch           with `version` and `logp_proximal`
    weights : Weights                of the rule, target = proximal
    laws : Float[Tensor, "B T V"]    log-laws of the trainer at every token
    current : int                    version of the trainer's weights

    Examples
    --------
    >>> import testbed
    >>> one = torch.ones(2, 1)
    >>> batch = testbed.SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one, logp_behavior=-one - 0.5,
    ...     logp_proximal=-one, reward=torch.tensor([1.0, 0.0]), group=torch.tensor([7, 7]), version=3 * one.long())
    >>> found = batch_metrics(batch, testbed.weigh("none", batch), torch.full((2, 1, 2), 0.5).log(), current=5)
    >>> found.reward, found.max_log_k, found.staleness, round(found.entropy, 6), found.ages[:3]
    (0.5, 0.5, 2.0, 0.693147, [0, 0, 2])
    """
    mask, age = batch.mask, staleness(batch, current)
    proximal = batch.require("logp_proximal", "batch_metrics")
    gap = torch.where(mask, (proximal - batch.logp_behavior).abs(), 0.0)
    plogp = torch.where(laws > -torch.inf, laws.exp() * laws, 0.0)
    tokens = max(1, int(mask.sum()))
    versions = (batch.segment.amax(1) + 1).double() if batch.horizon else age.double()
    raw = weights.raw.clamp(max=torch.finfo(weights.raw.dtype).max ** 0.4)  # an ESS of infinite weights says nothing
    return BatchMetrics(
        reward=float(batch.reward.double().mean()),
        length=float(batch.lengths.double().mean()),
        entropy=float(masked_mean(-plogp.sum(-1), mask)),
        max_log_k=float(gap.max()) if gap.numel() else 0.0,
        acted=float((weights.acted & mask).sum()) / tokens,
        ess_raw=float(ess(raw, mask)) / tokens,
        ess_applied=float(ess(weights.value, mask, which="applied")) / tokens,
        mean_weight=float(masked_mean(weights.value.double(), mask)),
        staleness=float(age.double().mean()),
        ages=torch.bincount(age.clamp(max=OLDEST), minlength=OLDEST + 1).tolist(),
        segments=float(versions.mean()),
    )
