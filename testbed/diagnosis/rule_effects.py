"""What each weighting rule would do to this batch: how many tokens it acts on, and what remains of the weights.

The mean, the second moments and the excess are averages over the things a rule weighs: tokens, segments of a response,
or whole responses, by its granularity. A token's weight would otherwise count once per token that carries it, and the
mean of an exact response weight would come out as a ratio of mean lengths instead of 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.shared_draws import SharedDraws
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
           unit, acted_share, mean_weight, mean_raw, bias = E(applied - raw), second_moment_raw, second_moment_applied,
           ess_share_raw, ess_share_applied, excess = E(raw - applied)+, raised = E(applied - raw)+, saturated), left_out
           (rule -> fields the batch lacks). bias, excess and raised are None where a raw ratio overflows. Each of
           acted_share, mean_weight, bias, excess and second_moment_applied has a bootstrap over responses beside it, in
           NAME_interval, all rules on the same draws
    """
    advantage, origin = batch_advantage(batch)
    units = {unit: _unit_mask(batch, unit) for unit in set(UNITS.values())}
    draws = SharedDraws(batch.batch_size, seeds)
    rules, left_out = [], {}
    for name, rule in RULES.items():
        missing = [field for field in rule.needs if getattr(batch, field) is None]
        if missing:
            left_out[name] = missing
            continue
        weights = weigh(name, batch, advantage if rule.needs_advantage else None)
        unit = UNITS[weights.granularity]
        rules.append(_effect(weights, batch, unit, units[unit], draws))
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
    weights: Weights, batch: SegmentedBatch, unit: str, counted: Bool[Tensor, "B T"], draws: SharedDraws
) -> dict[str, Any]:
    raw, value, acted = weights.raw.double(), weights.value.double(), weights.acted.double()
    picked_raw, picked = raw[counted], value[counted]
    number = len(picked)
    finite = not weights.saturated  # of an infinite ratio nothing is the truncation bias
    change = torch.where(counted, value - raw, 0.0) if finite else torch.full_like(value, math.nan)
    of_units = draws.intervals([value, value.square(), change, (-change).clamp(min=0)], counted)
    return {
        "rule": weights.rule,
        "granularity": weights.granularity,
        "parameters": dict(weights.params),
        "unit": unit,
        "acted_share": float(acted[batch.mask].mean()),
        "acted_share_interval": draws.intervals([acted], batch.mask)[0],
        "mean_weight": float(mean_weight(picked, which="applied")),
        "mean_weight_interval": of_units[0],
        "mean_raw": float(mean_weight(picked_raw)),
        "bias": float(change[counted].mean()) if finite else None,
        "bias_interval": of_units[2],
        "second_moment_raw": float(second_moment(picked_raw)),
        "second_moment_applied": float(second_moment(picked, which="applied")),
        "second_moment_applied_interval": of_units[1],
        "ess_share_raw": float(ess(picked_raw)) / number,
        "ess_share_applied": float(ess(picked, which="applied")) / number,
        "excess": float((-change[counted]).clamp(min=0).mean()) if finite else None,
        "excess_interval": of_units[3],
        "raised": float(change[counted].clamp(min=0).mean()) if finite else None,
        "saturated": weights.saturated,
    }
