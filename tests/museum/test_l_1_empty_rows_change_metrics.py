"""L1: an all-masked row changes the metrics.

verl 0.9.1: a response without tokens has the empty product 1, counts as a weight, and chi-square falls from 40 to 26.67;
the smallest ratio becomes 0. Adding empty rows must change no metric.
"""

import json

import pytest
import torch

from testbed import group_advantage
from testbed.diagnosis.report import diagnose
from testbed.stats.pareto_tail import pareto_k
from testbed.stats.weight_statistics import chi2, ess, mean_weight, renyi2, second_moment
from testbed.weighting.segment_ends import segment_end_log_ratios
from tests.museum.specimens import MASK, REDUCTIONS, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

REAL = torch.tensor([0, 1, 3])
STATISTICS = (mean_weight, second_moment, chi2, renyi2, ess, pareto_k)


def with_an_empty_row(ratios):
    log_ratio = torch.tensor([[r] for r in ratios] + [[1.0]], dtype=torch.float64).log()
    mask = torch.ones(len(ratios) + 1, 1, dtype=torch.bool)
    mask[-1] = False
    return batch_with_ratios(log_ratio, mask=mask)


def test_wrong_recipe_counts_the_empty_product():
    products = torch.tensor([9.0, 1.0])
    with_empty = torch.cat([products, torch.ones(1)])
    assert float((products**2).mean() - 1) == 40.0
    assert float((with_empty**2).mean() - 1) == pytest.approx(26.67, abs=5e-3)


def test_ours_counts_responses_that_exist():
    batch = with_an_empty_row([9.0, 1.0])
    product = segment_end_log_ratios(batch)[:, -1].exp()
    assert float(chi2(product, batch.mask.any(1))) == pytest.approx(40.0, rel=1e-12)
    (record,) = diagnose(batch)["products"]
    assert record["n"] == 2 and record["raw"]["chi2"] == pytest.approx(40.0, rel=1e-12)
    assert record["raw"]["median"] == 1.0 and record["raw"]["largest"] == pytest.approx(9.0, rel=1e-12)


@pytest.mark.parametrize("empty_reward", [0.0, 7.0, -3.0])
def test_the_whole_diagnosis_is_unchanged(empty_reward):
    both = ragged(reward=(1.0, -1.0, empty_reward, -0.5))
    found, want = (json.dumps(diagnose(batch), sort_keys=True) for batch in (both, both.select(REAL)))
    assert found == want


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda f: f.__name__)
def test_every_statistic_of_every_rule(statistic, poison):
    batch = ragged(fill=poison)
    for rule, granularity in PAIRS:
        w = weights(rule, batch, granularity)
        for values in (w.raw, w.value):
            found, want = statistic(values, batch.mask), statistic(values[REAL], MASK[REAL])
            assert found == want and found.n == want.n == 9


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_in_every_mean(rule, granularity):
    batch = ragged(reward=(1.0, -1.0, 7.0, -0.5))
    for reduction in REDUCTIONS:
        loss, gradient = loss_and_gradient(batch, rule, granularity, reduction)
        want, slope = loss_and_gradient(batch.select(REAL), rule, granularity, reduction)
        positions = 0.75 if reduction[0] == "constant" else 1.0  # B * T counts positions, and says so
        torch.testing.assert_close(loss, want * positions, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient[REAL], slope * positions, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("baseline", ["none", "group_mean", "leave_one_out"])
def test_every_advantage(baseline, scale):
    batch = ragged(reward=(1.0, -1.0, 7.0, -0.5)).replaced(group=torch.zeros(4, dtype=torch.int64))
    found = group_advantage(batch, baseline, scale)
    assert torch.equal(found[REAL], group_advantage(batch.select(REAL), baseline, scale)) and found[2] == 0.0
