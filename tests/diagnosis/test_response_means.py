"""What the test of E[w] = 1 rests on, by enumeration: exact means of the token sum and of the e-value."""

from __future__ import annotations

import math

import pytest
import torch

import testbed
from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_means import log_e_value, response_mean_interval, token_mean_interval
from testbed.diagnosis.unit_mean import unit_mean_records
from testbed.sample_data import partial_rollouts_path


@pytest.fixture(scope="module", params=[None, 1], ids=["fixed length", "random length"])
def law(request):
    """Two segments; with an end token the number of tokens depends on what is drawn."""
    target, first, second = (testbed.TabularPolicy.random(2, 3, seed=s, scale=1.0) for s in (0, 1, 2))
    world = testbed.PrefixTree(vocab_size=2, horizon=3, rewards=torch.zeros(8, dtype=torch.float64), eos=request.param)
    schedule = testbed.PrefixSchedule(policies=(first, second), segment_of=testbed.cuts([1]))
    return testbed.enumerate_law(world, target, schedule)


def rows(law):
    return [law.batch.select([i]) for i in range(law.batch.batch_size)]


def test_the_mean_token_ratio_is_1_whatever_the_lengths(law):
    ratio = torch.where(law.batch.mask, testbed.log_ratios(law.batch).exp(), 0.0)
    for segment in (0, 1):
        chosen = law.batch.segment == segment
        excess = torch.where(chosen, ratio - 1, 0.0).sum(1)
        assert float(law.expect(excess)) == pytest.approx(0.0, abs=1e-14)
        assert float(law.expect(excess.square())) > 0.01  # it is no constant


def test_the_e_value_has_mean_1_under_the_recorded_behavior(law):
    values = [math.exp(log_e_value(testbed.log_ratios(row), row.mask)) for row in rows(law)]
    assert float(law.expect(torch.tensor(values, dtype=torch.float64))) == pytest.approx(1.0, abs=1e-13)


def test_the_e_value_grows_when_another_policy_drew_the_tokens(law):
    """Under the target itself its expected logarithm is positive, so that it grows without bound with the sample."""
    batch = law.batch
    drawn = law.probs * torch.where(batch.mask, testbed.log_ratios(batch), 0.0).sum(1).exp()
    assert float(drawn.sum()) == pytest.approx(1.0)
    logs = torch.tensor([log_e_value(testbed.log_ratios(row), row.mask) for row in rows(law)], dtype=torch.float64)
    assert float((drawn * logs).sum()) > 0.01
    assert float((law.probs * logs).sum()) < -0.005


def test_e_value_of_overflowing_ratios_is_infinite_evidence_and_of_impossible_ones_is_none():
    every = torch.ones(1, 3, dtype=torch.bool)
    assert log_e_value(torch.full((1, 3), 1e4), every) == pytest.approx(3e4, rel=1e-3)
    assert -3 * math.log(2) < log_e_value(torch.full((1, 3), -math.inf), every) < 0


def test_an_interval_resamples_responses_and_not_tokens():
    """30 responses of 50 equal tokens hold 30 facts: the width is that of 30, not of 1500."""
    value = torch.arange(30.0).double()[:, None].expand(30, 50)
    every = torch.ones(30, 50, dtype=torch.bool)
    found = token_mean_interval(value, every, SeedTree("test"))
    expected = 2 * 1.96 * float(value[:, 0].std()) / math.sqrt(30)
    assert 0.85 < (found["high"] - found["low"]) / expected < 1.15
    assert found["method"] == "bootstrap over responses"


def test_no_interval_from_few_responses_or_infinite_values():
    few = torch.ones(19, dtype=torch.float64)
    assert response_mean_interval(few, SeedTree("test")) is None
    assert response_mean_interval(torch.ones(20), SeedTree("test"))["low"] == 1.0
    assert response_mean_interval(torch.tensor([math.inf] + [1.0] * 30), SeedTree("test")) is None


def test_padding_has_no_effect_on_the_test_of_the_mean():
    batch = testbed.load_dump(partial_rollouts_path())
    poisoned = batch.logp_target.clone()
    poisoned[~batch.mask] = math.nan
    assert unit_mean_records(batch, SeedTree(0)) == unit_mean_records(batch.replaced(logp_target=poisoned), SeedTree(0))
