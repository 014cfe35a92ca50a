"""Which form of a segment-wise prefix correction is unbiased for *this* data, and by which theorem.

SPIRE claims an unbiased prefix correction. Its full text was not available to us, so its formulas here are readings of
its abstract, and what decides between them is what was recorded: the kind of reward, a critic, and whether the segments
after a token were drawn from the target itself.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.stats.divergence import kl
from testbed.weighting.granularity import log_ratios

ON_POLICY = 1e-6  # nats; below it the recorded log-probs are equal to their own rounding in float32
HEDGE = "SPIRE's full text was not available to us: these are readings of its abstract, each decided by a theorem."
ASSUMED = "boundaries chosen from the prefix alone (S6 is the counterexample), and a behavior that covers the target"


def applicable_readings(batch: SegmentedBatch) -> dict[str, Any]:
    """Decide, from what the batch carries, which weights make the policy gradient unbiased.

    Returns
    -------
    dict   facts (segments, later_on_policy, later_kl in nats per token, token_reward, action_value), readings (list of
           {reading, rule, theorems, unbiased: "yes", "no" or "not recorded", because}), advised (name of a reading),
           assumes, hedge

    Raises
    ------
    InputError     as `log_ratios`
    Assumes        what `assumes` says
    Gives          S1-S4

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 2, dtype=torch.int64), mask=torch.ones(1, 2, dtype=torch.bool),
    ...     segment=torch.tensor([[0, 1]]), logp_target=torch.tensor([[-1.0, -1.0]]),
    ...     logp_behavior=torch.tensor([[-2.0, -1.0]]), reward=torch.ones(1), group=torch.tensor([0]))
    >>> applicable_readings(batch)["advised"]  # the second segment is on-policy
    'segment-end products'
    """
    ratio = log_ratios(batch).double()
    highest = torch.iinfo(batch.segment.dtype).max
    first = (
        torch.where(batch.mask, batch.segment, highest).min(1, keepdim=True).values if batch.horizon else batch.segment
    )
    later = batch.mask & (batch.segment > first)
    gap = _largest(ratio, later)
    facts = {
        "segments": len(batch.segment[batch.mask].unique()),
        "on_policy": _largest(ratio, batch.mask) <= ON_POLICY,
        "later_tokens": int(later.sum()),
        "later_largest_gap": gap,
        "later_kl": float(kl(ratio, later)),
        "later_on_policy": gap <= ON_POLICY,
        "token_reward": batch.token_reward is not None,
        "action_value": batch.action_value is not None,
    }
    readings = [
        _full_product(),
        _segment_ends(facts),
        _prefix_critic(facts),
        _prefix_steps(facts),
        _prefix_terminal(facts),
    ]
    order = ["prefix with per-step rewards", "prefix with a critic", "segment-end products", "full product"]
    unbiased = [reading["reading"] for reading in readings if reading["unbiased"] == "yes"]
    advised = next(name for name in order if name in unbiased and not (name == order[2] and facts["segments"] <= 1))
    return {"facts": facts, "readings": readings, "advised": advised, "assumes": ASSUMED, "hedge": HEDGE}


def _largest(ratio: Float[Tensor, "B T"], selected: Bool[Tensor, "B T"]) -> float:
    return float(ratio[selected].abs().max()) if bool(selected.any()) else 0.0


def _reading(name: str, rule: str, theorems: list[str], unbiased: str, because: str) -> dict[str, Any]:
    return {"reading": name, "rule": rule, "theorems": theorems, "unbiased": unbiased, "because": because}


def _full_product() -> dict[str, Any]:
    because = "corrects the whole response, whatever the segments; its second moment grows with every segment (S12)"
    return _reading("full product", "sequence_product", ["S2", "S12"], "yes", because)


def _segment_ends(facts: dict[str, Any]) -> dict[str, Any]:
    name, rule, theorems = "segment-end products", "segment_prefix", ["S1", "S4"]
    if facts["segments"] <= 1:
        return _reading(name, rule, theorems, "yes", "there is one segment: this is the full product")
    if facts["later_on_policy"]:
        because = "all later segments were drawn from the target, so what follows a boundary needs no correction"
        return _reading(name, rule, theorems, "yes", because)
    because = (
        f"later segments are off-policy ({facts['later_kl']:.2g} nats per token): exact for what is known at a boundary "
        "(S1), but a reward given at the end is still drawn from them (S4)"
    )
    return _reading(name, rule, theorems, "no", because)


def _prefix_critic(facts: dict[str, Any]) -> dict[str, Any]:
    name, rule, theorems = "prefix with a critic", "prefix", ["S3"]
    if not facts["action_value"]:
        return _reading(name, rule, theorems, "not recorded", "needs `action_value`, Q of the target policy")
    because = "if `action_value` is Q of the *target*; Q of the behavior, which is what returns estimate, is not enough"
    return _reading(name, rule, theorems, "yes", because)


def _prefix_steps(facts: dict[str, Any]) -> dict[str, Any]:
    name, rule, theorems = "prefix with per-step rewards", "prefix", ["S3"]
    if not facts["token_reward"]:
        return _reading(name, rule, theorems, "not recorded", "needs `token_reward`")
    return _reading(name, rule, theorems, "yes", "each reward is weighted by the product up to its own step")


def _prefix_terminal(facts: dict[str, Any]) -> dict[str, Any]:
    name, rule, theorems = "prefix with the final reward", "prefix", ["S4"]
    if facts["on_policy"]:
        return _reading(name, rule, theorems, "yes", "every token was drawn from the target: every weight is 1")
    if facts["segments"] <= 1 or not facts["later_on_policy"]:
        because = "the tokens after t are the behavior's, and the reward depends on them; the bias is E[s_t (Q_mu - Q)]"
        return _reading(name, rule, theorems, "no", because)
    because = "inside a segment the tokens after t are still the behavior's; use the product to the segment's end"
    return _reading(name, rule, theorems, "no", because)
