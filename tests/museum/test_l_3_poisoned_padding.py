"""L3: NaN in padding makes the loss NaN, or rejects the whole response.

verl in its means over responses, and slime. Whatever stands in padding (NaN, both infinities, 1e30) may change no bit of a
weight, a loss, a gradient or a statistic.
"""

import json
import math

import pytest
import torch

from testbed import TabularPolicy, gradient_terms, group_advantage, log_ratios, value_terms
from testbed.diagnosis.report import diagnose
from testbed.estimators.per_decision import weighted_reward_to_go
from testbed.rollout.staleness import staleness
from testbed.weighting.rule import GRANULARITIES
from testbed.weighting.segment_ends import segment_end_log_ratios
from tests.museum.specimens import MASK, REDUCTIONS, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, same


def test_wrong_recipe_multiplies_by_the_mask(poison):
    ratio, mask = torch.tensor([[1.0, poison]]), torch.tensor([[1.0, 0.0]])
    loss = (ratio * mask).sum(1).mean()
    assert loss.isnan() or poison == 1e30  # 1e30 survives a product with 0, and nothing else
    squared = ((ratio**2) * mask).sum()  # in float32 it then overflows
    assert squared.isnan()


def test_ours_replaces_it_at_the_door(poison):
    clean, dirty = ragged(), ragged(fill=poison)
    for name in ("logp_target", "logp_behavior", "logp_proximal", "token_reward", "action_value", "segment", "tokens"):
        assert torch.equal(getattr(dirty, name), getattr(clean, name))
    assert torch.equal(dirty.reward, clean.reward)


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_in_every_reduction(rule, granularity, poison):
    clean, dirty = ragged(), ragged(fill=poison)
    assert same(weights(rule, dirty, granularity), weights(rule, clean, granularity))
    advantage = torch.where(MASK, clean.reward[:, None], 0.0)
    bad_advantage = torch.where(MASK, advantage, poison)
    logp = torch.where(MASK, clean.logp_target, poison)
    for reduction in REDUCTIONS:
        want = loss_and_gradient(clean, rule, granularity, reduction, advantage)
        found = loss_and_gradient(dirty, rule, granularity, reduction, bad_advantage, logp)
        assert torch.equal(found[0], want[0]) and torch.equal(found[1], want[1])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_granularity(granularity, poison):
    for pair in ({}, {"denominator": "proximal"}, {"numerator": "proximal"}):
        assert torch.equal(
            log_ratios(ragged(fill=poison), granularity, **pair), log_ratios(ragged(), granularity, **pair)
        )


def test_every_estimator_and_the_diagnosis(poison):
    clean, dirty = ragged(), ragged(fill=poison)
    pi = TabularPolicy.random(2, 4, 0)
    value = torch.where(MASK, 0.3, poison).double()
    bad_weight = torch.where(MASK, 0.7, poison).double()
    functions = (
        value_terms,
        lambda b: value_terms(b, "per_decision"),
        lambda b: value_terms(b, "doubly_robust", value if b is dirty else torch.where(MASK, value, 0.0)),
        lambda b: gradient_terms(b, bad_weight if b is dirty else torch.where(MASK, bad_weight, 0.0), pi),
        lambda b: weighted_reward_to_go(b, bad_weight if b is dirty else torch.where(MASK, bad_weight, 0.0)),
        lambda b: group_advantage(b, scale="std"),
        segment_end_log_ratios,
        lambda b: staleness(b, 9),
    )
    for function in functions:
        found, want = function(dirty), function(clean)
        assert torch.equal(found, want) and not found.isnan().any()
    assert json.dumps(diagnose(dirty), sort_keys=True) == json.dumps(diagnose(clean), sort_keys=True)
    assert math.isfinite(diagnose(dirty)["batch"]["mean_reward"])
