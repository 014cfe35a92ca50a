"""Batches for the weighting tests, built from the log ratios they should have."""

import math

import numpy as np
import torch

from testbed.core.batch import NextTokenLaws, SegmentedBatch
from testbed.core.numerics import log1m_exp
from testbed.weighting.rules import RULES

PAIRS = [(name, granularity) for name, rule in RULES.items() for granularity in rule.granularities]
SURROGATES = ("ppo_clip", "dual_clip", "decoupled_ppo", "gspo", "m2po", "mu_grpo")
OPERATOR_FREE = ("exact", "prefix", "segment", "segment_prefix", "sequence_product")


def runnable(rule):
    """Parameters under which no row sees another and no next-token law is asked for: the defaults, but for a few rules."""
    return {
        "spire": {"cap": 3.0},
        "sis": {"bound": 3.0},
        "obrs": {"share": 1.0},
        "ais": {"alpha": 0.5},
        "m2po": {"tau": 0.5},
    }.get(rule, {})


def recorded(batch, target_split=0.6, behavior_split=0.6):
    """Return the batch with laws over three tokens: the drawn one, and two that share the rest of the mass."""

    def law(logp, split):
        rest = log1m_exp(logp)
        return torch.stack([logp, rest + math.log(split), rest + math.log(1 - split)], -1)

    none = torch.zeros(batch.mask.shape, dtype=torch.float64)
    return batch.replaced(
        next_token=NextTokenLaws(
            ids=batch.tokens[..., None] + torch.arange(3),
            logp_target=law(batch.logp_target.detach(), target_split),
            logp_behavior=law(batch.logp_behavior.detach(), behavior_split),
            remaining_target=none,
            remaining_behavior=none,
        )
    )


def ready(rule, batch):
    """Return (batch, parameters) under which no row sees another; rules that read next-token laws find them."""
    if "next_token" in RULES[rule].needs:
        return recorded(batch), {}
    return batch, runnable(rule)


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
