"""What each weighting rule would do to this batch: how many tokens it acts on, and what remains of the weights.

The mean, the second moments and the excess are averages over the things a rule weighs: tokens, segments of a response,
or whole responses, by its granularity. A token's weight would otherwise count once per token that carries it, and the
mean of an exact response weight would come out as a ratio of mean lengths instead of 1.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_means import token_mean_interval
from testbed.estimators.advantage import group_advantage
from testbed.stats.weight_statistics import ess, mean_weight, second_moment
from testbed.weighting.registry import RULES
from testbed.weighting.rules import weigh
from testbed.weighting.weights import Weights

UNITS = {
    "token": "token",
    "prefix": "token",
    "segment": "segment",
    "segment_prefix": "segment",
    "sequence_product": "response",
    "sequence_geomean": "response",
}


def rule_records(batch: SegmentedBatch, seeds: SeedTree) -> dict[str, Any]:
    """Apply every rule whose fields the batch has, with its default parameters.

    Returns
    -------
    dict   advantage (where clip-type rules take its sign from), rules (list of records: rule, granularity, parameters,
           unit, acted_share, mean_weight, mean_weight_interval, mean_raw, second_moment_raw, second_moment_applied,
           ess_share_raw, ess_share_applied, excess = E(raw - applied)+, raised = E(applied - raw)+, saturated),
           left_out (rule -> fields the batch lacks)
    """
    advantage, origin = batch_advantage(batch)
    units = {unit: _unit_mask(batch, unit) for unit in set(UNITS.values())}
    rules, left_out = [], {}
    for name, rule in RULES.items():
        missing = [field for field in rule.needs if getattr(batch, field) is None]
        if missing:
            left_out[name] = missing
            continue
        weights = weigh(name, batch, advantage if rule.needs_advantage else None)
        unit = UNITS[weights.granularity]
        rules.append(_effect(weights, batch, unit, units[unit], seeds[name]))
    return {"advantage": origin, "rules": rules, "left_out": left_out}


def batch_advantage(batch: SegmentedBatch) -> tuple[Float[Tensor, " B"], str]:
    """Reward minus the mean of its group, or of the batch where every group has one response; and which, in words."""
    if len(batch.group.unique()) < batch.batch_size:
        return group_advantage(batch, baseline="group_mean"), "reward minus the mean of its group"
    return batch.reward - batch.reward.mean(), "reward minus the mean of the batch (every group has one response)"


def _unit_mask(batch: SegmentedBatch, unit: str) -> Bool[Tensor, "B T"]:
    """Mark the first token of every unit: each token, each segment of a response, or each response."""
    if unit == "token":
        return batch.mask
    label = batch.segment if unit == "segment" else batch.mask.long()
    before = torch.nn.functional.pad(label[:, :-1], (1, 0), value=-2)
    return batch.mask & (label != before)


def _effect(
    weights: Weights, batch: SegmentedBatch, unit: str, counted: Bool[Tensor, "B T"], seeds: SeedTree
) -> dict[str, Any]:
    raw, value = weights.raw.double(), weights.value.double()
    picked_raw, picked = raw[counted], value[counted]
    number = len(picked)
    return {
        "rule": weights.rule,
        "granularity": weights.granularity,
        "parameters": dict(weights.params),
        "unit": unit,
        "acted_share": float(weights.acted[batch.mask].double().mean()),
        "mean_weight": float(mean_weight(picked, which="applied")),
        "mean_weight_interval": token_mean_interval(value, counted, seeds),
        "mean_raw": float(mean_weight(picked_raw)),
        "second_moment_raw": float(second_moment(picked_raw)),
        "second_moment_applied": float(second_moment(picked, which="applied")),
        "ess_share_raw": float(ess(picked_raw)) / number,
        "ess_share_applied": float(ess(picked, which="applied")) / number,
        "excess": float((picked_raw - picked).clamp(min=0).mean()),
        "raised": float((picked - picked_raw).clamp(min=0).mean()),
        "saturated": weights.saturated,
    }
