"""Which reading is unbiased is decided by the data, and agrees with exact enumeration of the estimator it names."""

from __future__ import annotations

import pytest
import torch

import testbed
from testbed.diagnosis.readings import applicable_readings

REWARDS = torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, 0.0, -0.7, 1.5], dtype=torch.float64)


def law_of(first, second):
    target = testbed.TabularPolicy.random(2, 3, seed=0, scale=1.0)
    policies = [
        target if seed is None else testbed.TabularPolicy.random(2, 3, seed=seed, scale=1.0) for seed in (first, second)
    ]
    world = testbed.PrefixTree(vocab_size=2, horizon=3, rewards=REWARDS)
    schedule = testbed.PrefixSchedule(policies=tuple(policies), segment_of=testbed.cuts([2]))
    return testbed.enumerate_law(world, target, schedule), testbed.exact_gradient(world, target), target


@pytest.mark.parametrize(
    ("first", "second", "advised"),
    [
        (1, 2, "full product"),
        (1, None, "segment-end products"),
        (None, 2, "full product"),
        (None, None, "segment-end products"),
    ],
)
def test_verdicts_agree_with_enumeration(first, second, advised):
    law, truth, target = law_of(first, second)
    found = applicable_readings(law.batch)
    assert found["advised"] == advised
    for reading in found["readings"]:
        if reading["unbiased"] == "not recorded":
            continue
        weights = testbed.weigh(reading["rule"], law.batch)
        exact = testbed.moments(law, testbed.gradient_terms(law.batch, weights, target)).mean
        unbiased = float((exact - truth).norm()) < 1e-10
        assert unbiased == (reading["unbiased"] == "yes"), reading


def test_later_means_after_a_responses_own_first_segment():
    """A response that begins in the second segment has no later one."""
    law, _, _ = law_of(1, None)
    batch = law.batch
    late = batch.replaced(segment=torch.ones_like(batch.segment))
    both = testbed.SegmentedBatch.concatenated([batch, late])
    assert applicable_readings(both)["facts"]["later_on_policy"]
    assert applicable_readings(both)["facts"]["later_tokens"] == applicable_readings(batch)["facts"]["later_tokens"]


@pytest.mark.parametrize(
    ("field", "advised"), [("token_reward", "prefix with per-step rewards"), ("action_value", "prefix with a critic")]
)
def test_what_was_recorded_opens_a_reading(field, advised):
    law, _, _ = law_of(1, 2)
    assert applicable_readings(law.batch)["advised"] == "full product"
    richer = law.batch.replaced(**{field: torch.ones_like(law.batch.logp_target)})
    assert applicable_readings(richer)["advised"] == advised


def test_readings_are_called_readings():
    law, _, _ = law_of(1, 2)
    found = applicable_readings(law.batch)
    assert "not available to us" in found["hedge"]
    assert {i for reading in found["readings"] for i in reading["theorems"]} >= {"S1", "S2", "S3", "S4"}


def test_one_segment_needs_the_full_product_and_says_so():
    law, _, _ = law_of(1, 2)
    found = applicable_readings(law.batch.replaced(segment=torch.zeros_like(law.batch.segment)))
    assert found["advised"] == "full product"
    assert next(r for r in found["readings"] if r["reading"] == "segment-end products")["because"].startswith(
        "there is one"
    )
