"""Batches for the weighting tests, built from the log ratios they should have."""

import numpy as np
import torch

from testbed.core.batch import SegmentedBatch
from testbed.weighting.rules import RULES

PAIRS = [(name, granularity) for name, rule in RULES.items() for granularity in rule.granularities]
SURROGATES = ("ppo_clip", "dual_clip", "decoupled_ppo", "gspo")
OPERATOR_FREE = ("exact", "prefix", "segment", "segment_prefix", "sequence_product")


def runnable(rule):
    """Parameters under which no row sees another: the defaults, and a cap for the one rule that takes its own from the batch."""
    return {"cap": 3.0} if rule == "spire" else {}


def batch_of(target, behavior, *, mask=None, segment=None, proximal=None, reward=None, dtype=torch.float64):
    """Return a batch of these log-probs; one segment and no padding unless told otherwise."""
    target, behavior = (torch.as_tensor(x, dtype=dtype) for x in (target, behavior))
    mask = torch.ones(target.shape, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    segment = torch.zeros(target.shape, dtype=torch.int64) if segment is None else torch.as_tensor(segment)
    proximal = behavior.clone() if proximal is None else torch.as_tensor(proximal, dtype=dtype)
    reward = torch.ones(len(target)) if reward is None else torch.as_tensor(reward)
    return SegmentedBatch(
        tokens=torch.zeros(target.shape, dtype=torch.int64),
        mask=mask,
        segment=segment,
        logp_target=target,
        logp_behavior=behavior,
        logp_proximal=proximal,
        reward=reward.to(torch.float64),
        group=torch.zeros(len(target), dtype=torch.int64),
    )


def batch_with_ratios(log_ratio, **fields):
    """Return a batch with these token log ratios; the behavior's log-probs are as high as they can be."""
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float64)
    behavior = -log_ratio.clamp(min=0.0).nan_to_num(posinf=0.0)
    return batch_of(log_ratio + behavior, behavior, **fields)


def random_batch(rng, rows=5, horizon=6, scale=1.0, dtype=torch.float64):
    """Return a ragged batch with holes, an empty row, skipped segment labels and log ratios up to `scale` nats."""
    mask = rng.random((rows, horizon)) < 0.8
    mask[0] = False
    mask[1] = True
    segment = np.cumsum(rng.integers(0, 3, (rows, horizon)), axis=1)
    behavior = -scale - rng.exponential(1.0, (rows, horizon))
    target = behavior + rng.uniform(-scale, scale, (rows, horizon))
    proximal = behavior + rng.uniform(-scale, scale, (rows, horizon))
    reward = rng.choice([-1.5, -0.5, 0.0, 1.0], rows)
    return batch_of(target, behavior, mask=mask, segment=segment, proximal=proximal, reward=reward, dtype=dtype)


def same(a, b):
    """Whether two sets of weights agree bit for bit."""
    pairs = [(a.value, b.value), (a.gate, b.gate), (a.acted, b.acted), (a.raw, b.raw)]
    if a.objective is not None:
        pairs.append((a.objective, b.objective))
    return all(torch.equal(x, y) for x, y in pairs) and a.saturated == b.saturated
