"""The comparison with the transcriptions is able to fail: a bug planted in the library shows in every rule it reaches.

That the same comparison finds nothing without the bug is what `test_transcriptions_all.py` says.
"""

import math

import pytest
import torch

from testbed.core.numerics import log1m_exp
from testbed.stats.token_divergence import kl_k2
from testbed.weighting import (
    binary_divergence,
    clip,
    confidence,
    granularity,
    mask,
    plain,
    prefix,
    probability_change,
    rejection,
    truncate,
)
from testbed.weighting.rules import RULES, weigh
from tests.weighting.grid import WORLDS
from tests.weighting.planting import plant
from tests.weighting.transcription import disagreements


# ------------------------------------------------------------------------------------------- the bugs
def inverted_band(right):
    """Bounds read on behavior/target (verl's k1)."""
    return lambda log_ratio, low, high: right(-log_ratio, low, high)


def two_sided(right):
    """A truncation that also raises small weights."""
    return lambda log_ratio, cap: right(log_ratio, cap).clamp(min=0.5)


def lower_side_lost(right):
    return lambda log_ratio, low, high: right(log_ratio, 0.0, high)


def sign_ignored(right):
    """A clip that cuts both sides whatever the advantage."""
    return lambda log_ratio, advantage, *eps: right(log_ratio, torch.ones_like(advantage), *eps)


def dual_ignored(right):
    return lambda log_ratio, advantage, low, high, dual=math.inf: right(log_ratio, advantage, low, high)


def ratio_for_one(right):
    """`none` that weighs by the ratio."""
    return plain._as_it_is


def other_segments(right):
    return lambda wide, segment, through: right(wide, segment, through=not through)


def padding_counted(right):
    """Mean over the width of the batch where it should be over the response."""

    def wrong(batch, level="token", **policies):
        found = right(batch, level, **policies)
        return found * batch.lengths[:, None] / batch.horizon if level == "sequence_geomean" else found

    return wrong


def one_token_late(right):
    """A running product that stops before t, and a response's product that lacks its first token."""

    def wrong(batch, level="token", **policies):
        found = right(batch, level, **policies)
        if level == "prefix":
            return found - right(batch, "token", **policies)
        return found - right(batch, "token", **policies)[:, :1] if level == "sequence_product" else found

    return wrong


def own_ratio_in_minimum(right):
    return lambda log_ratio, real: log_ratio + log_ratio.masked_fill(~real, torch.inf).cummin(1).values.clamp(max=0.0)


def width_for_position(right):
    return lambda log_ratio, real: log_ratio.cumsum(1) / real.shape[1]


def lam_on_its_own_step(right):
    def wrong(log_ratio, real, rho_cap, c_cap, lam):
        return right(log_ratio, real, rho_cap, c_cap, lam) + (math.log(lam) if lam > 0 else 0.0)

    return wrong


def floor_dropped(right):
    return lambda logp, lam=2.3, floor=5e-3, cap_form="odds": right(logp, lam, 0.0, cap_form)


def another_form(right):
    return lambda logp, lam=2.3, floor=5e-3, cap_form="odds": right(logp, lam, floor, "linear")


def complement_in_single_precision(right):
    """1 - exp(log p) in float32: 0 for every p above 1 - 6e-8."""

    def wrong(logp, lam=2.3, floor=5e-3, cap_form="odds"):
        doubt = (1.0 - logp.float().exp()).double().clamp(min=floor)
        return torch.log1p(doubt * math.expm1(lam))

    return wrong


def low_without_confidence(right):
    return lambda logp, low: torch.full_like(logp, math.log(low))


def low_of_the_doubt(right):
    """1-p in place of p."""
    return lambda logp, low: right(torch.log(-torch.expm1(logp)), low)


def one_direction(right):
    return lambda logp_target, logp_behavior, phi: binary_divergence.binary_kl(logp_target, logp_behavior) <= phi


def single_precision_divergence(right):
    """Probabilities kept in [1e-8, 1 - 1e-8] in float32, where 1 - 1e-8 is 1."""

    def wrong(logp_first, logp_second):
        a, b = (x.float().exp().clamp(1e-8, 1 - 1e-8) for x in (logp_first, logp_second))
        return (a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()).double()

    return wrong


def mirrored_advantage(right):
    return lambda logp_target, logp_behavior, advantage, *eps: right(logp_target, logp_behavior, -advantage, *eps)


def both_directions_gated(right):
    """A trust region that closes on moves against the advantage too."""

    def wrong(logp_target, logp_behavior, advantage, *eps):
        return right(logp_target, logp_behavior, advantage, *eps) & right(logp_target, logp_behavior, -advantage, *eps)

    return wrong


def reversed_divergence(right):
    return lambda first, second: right(second, first)


def square_without_half(right):
    return lambda log_ratio, *mask_: 2.0 * kl_k2(log_ratio)


def inverted_estimate(right):
    return lambda log_ratio, *mask_: right(-log_ratio)


def mean_over_width(right):
    def wrong(statistic, real, aggregate="mean"):
        found = right(statistic, real, aggregate)
        return found * real.sum(1, keepdim=True) / real.shape[1] if aggregate == "mean" else found

    return wrong


def padding_in_maximum(right):
    def wrong(statistic, real, aggregate="mean"):
        found = right(statistic, real, aggregate)
        return found.clamp(min=0.0) if aggregate == "max" else found

    return wrong


def high_side_vetoes(right):
    return lambda log_ratio, real, threshold: right(-log_ratio, real, threshold)


def average_vetoes(right):
    return lambda log_ratio, real, threshold: rejection.over_response(log_ratio, real) >= math.log(threshold)


def wrong_sign_of_the_move(right):
    return lambda log_ratio, real, advantage, delta: right(-log_ratio, real, advantage, delta)


def every_advantage_masked(right):
    return lambda log_ratio, real, advantage, delta: right(log_ratio, real, -torch.ones_like(advantage), delta)


OTHER_LAM = {"lam": 0.5}
BUGS = [
    (inverted_band, mask.mask_band, {"mis": {}, "icepop": {}, "seq_mis": {}, "k1_token": {}, "geo_mask": {"low": 0.9},
                                     "k1_sequence": {"low": 0.9}}),
    (two_sided, truncate.truncate, {"tis": {}, "seq_tis": {}, "spire": {"cap": 2.0}, "decoupled_ppo": {},
                                    "dppo_tv": {}, "dppo_kl": {}}),
    (lower_side_lost, truncate.clamp, {"band": {}, "cispo": {"eps_low": 0.3}, "exact": {"clamp": True}}),
    (sign_ignored, clip.clip_gate, {"ppo_clip": {}, "gspo": {}, "dual_clip": {}, "decoupled_ppo": {}}),
    (dual_ignored, clip.clip_gate, {"dual_clip": {}}),
    (ratio_for_one, plain.weigh_none, {"none": {}}),
    (other_segments, granularity._segment_total, {"segment": {}, "segment_prefix": {}, "spire": {"cap": 2.0}}),
    (padding_counted, granularity.log_ratios, {"gspo": {}, "geo_mask": {}}),
    (one_token_late, granularity.log_ratios, {"prefix": {}, "sequence_product": {}, "seq_tis": {}, "seq_mis": {}}),
    (own_ratio_in_minimum, prefix.minpro, {"minpro": {}}),
    (width_for_position, prefix.pnpo, {"pnpo": {}}),
    (lam_on_its_own_step, prefix.vtrace, {"vtrace": OTHER_LAM}),
    (floor_dropped, confidence.confidence_log_cap, {"cis": {}}),
    (another_form, confidence.confidence_log_cap, {"cis": {}}),
    (complement_in_single_precision, confidence.confidence_log_cap, {"cis": {"floor": 0.0}}),
    (low_without_confidence, confidence.confidence_log_low, {"cis": {"low": 0.5}}),
    (low_of_the_doubt, confidence.confidence_log_low, {"cis": {"low": 0.5}}),
    (one_direction, confidence.kpop_gate, {"kpop": {}}),
    (single_precision_divergence, binary_divergence.binary_kl, {"kpop": {}, "dppo_kl": {}}),
    (reversed_divergence, binary_divergence.binary_kl, {"dppo_kl": {}}),
    (mirrored_advantage, probability_change.total_variation_gate, {"dppo_tv": {}}),
    (both_directions_gated, probability_change.total_variation_gate, {"dppo_tv": {}}),
    (mirrored_advantage, probability_change.binary_kl_gate, {"dppo_kl": {}}),
    (both_directions_gated, probability_change.binary_kl_gate, {"dppo_kl": {}}),
    (square_without_half, rejection.kl_k2, {"k2_token": {}, "k2_sequence": {}}),
    (inverted_estimate, rejection.kl_k3, {"k3_token": {}, "k3_sequence": {}}),
    (mean_over_width, rejection.over_response, {"k1_sequence": {}, "k2_sequence": {}, "k3_sequence": {},
                                                "opsm": {"delta": 0.003}}),
    (padding_in_maximum, rejection.over_response, {"k1_sequence": {"low": 0.9, "high": 0.99, "aggregate": "max"}}),
    (high_side_vetoes, rejection.veto_gate, {"veto": {}}),
    (average_vetoes, rejection.veto_gate, {"veto": {}}),
    (wrong_sign_of_the_move, rejection.off_policy_gate, {"opsm": {}}),
    (every_advantage_masked, rejection.off_policy_gate, {"opsm": {}}),
]  # fmt: skip
CASES = [(bug, function, rule, given) for bug, function, reached in BUGS for rule, given in reached.items()]


@pytest.mark.parametrize(
    ("bug", "function", "rule", "given"), CASES, ids=[f"{bug.__name__}-{rule}" for bug, _, rule, _ in CASES]
)
def test_a_planted_bug_is_seen(bug, function, rule, given, monkeypatch):
    plant(monkeypatch, function, bug(function))
    assert any(disagreements(rule, WORLDS[name](), **given) for name in ("mild", "scattered", "tokens"))


def test_every_rule_of_these_files_has_a_bug():
    homes = ("plain", "truncate", "mask", "clip", "prefix", "segment", "confidence", "probability_change", "rejection")
    assert {rule for _, _, rule, _ in CASES} == {name for name, rule in RULES.items() if rule.home in homes}


def test_a_missing_surrogate_and_a_weight_on_padding_are_seen():
    batch = WORLDS["mild"]()
    weights = weigh("ppo_clip", batch)
    assert disagreements("ppo_clip", batch, weights=weights) == []
    spilled = weights.value.clone()
    spilled[~batch.mask] = 1.0
    fields = {name: getattr(weights, name) for name in ("gate", "acted", "raw", "saturated", "objective")}
    spoiled = type(weights)(value=spilled, **fields)
    assert disagreements("ppo_clip", batch, weights=spoiled) == ["value is not 0 on padding"]
    silent = type(weights)(value=weights.value, **{**fields, "objective": None})
    assert any("on one side only" in line for line in disagreements("ppo_clip", batch, weights=silent))


def test_the_stable_complement_is_what_the_grid_asks_for():
    """1 - p at p = 1 - 1e-12: the subtraction is off in the fifth digit, in float64."""
    logp = torch.tensor(-1e-12, dtype=torch.float64)
    naive, stable = torch.log(1.0 - logp.exp()), log1m_exp(logp)
    assert abs(float(naive - stable)) > 1e-6
