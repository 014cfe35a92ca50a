"""BR-20: everything is masked, and 0 / 0 is NaN.

https://github.com/huggingface/trl/pull/3248, https://github.com/unslothai/unsloth-zoo/pull/1286 and
https://github.com/huggingface/trl/pull/5826: the loss must be 0 and connected to the graph, and no metric NaN.
"""

import math

import pytest
import torch

from testbed import group_advantage, value_terms, weigh
from testbed.core.numerics import masked_mean
from testbed.estimators.value import self_normalized_value
from testbed.stats.divergence import kl, kl_bounded
from testbed.stats.log_weights import ess_from_log, renyi2_from_log
from testbed.stats.pareto_tail import pareto_k
from testbed.stats.weight_statistics import chi2, ess, mean_weight, renyi2, second_moment
from tests.museum.specimens import MASK, REDUCTIONS, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

NOTHING = torch.zeros_like(MASK)
STATISTICS = (mean_weight, second_moment, chi2, renyi2, ess, ess_from_log, renyi2_from_log, pareto_k)


def test_wrong_recipe_divides_by_zero():
    loss, mask = torch.ones(2, 3), torch.zeros(2, 3)
    assert ((loss * mask).sum() / mask.sum()).isnan()
    assert ((loss * mask).sum(1) / mask.sum(1)).mean().isnan()


def test_ours_is_zero_and_connected():
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    masked_mean(logp, torch.zeros(2, 3, dtype=torch.bool)).backward()
    assert logp.grad is not None and not logp.grad.any()
    loss, gradient = loss_and_gradient(ragged(mask=NOTHING), "tis")
    assert float(loss) == 0.0 and not gradient.any()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_in_every_reduction(rule, granularity, poison):
    empty = ragged(fill=poison, mask=NOTHING)
    for reduction in REDUCTIONS:
        loss, gradient = loss_and_gradient(empty, rule, granularity, reduction)
        assert float(loss) == 0.0 and torch.equal(gradient, torch.zeros(4, 4, dtype=torch.float64))
    assert not weights(rule, empty, granularity).value.any()


@pytest.mark.parametrize("reduction", REDUCTIONS, ids="-".join)
def test_a_gate_that_lets_nothing_through(reduction):
    far = batch_with_ratios([[5.0, 6.0], [7.0, 8.0]])
    loss, gradient = loss_and_gradient(far, "icepop", None, reduction)
    assert not weigh("icepop", far).gate.any()
    assert float(loss) == 0.0 and not gradient.any()


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda f: f.__name__)
def test_statistics_say_that_they_counted_nothing(statistic, poison):
    found = statistic(torch.full((2, 2), poison), torch.zeros(2, 2, dtype=torch.bool))
    assert found.n == 0 and not math.isnan(found)
    assert float(found) == (math.inf if statistic is pareto_k else 0.0)


def test_divergences_advantages_and_values_are_zero():
    none = torch.zeros(2, 2, dtype=torch.bool)
    assert float(kl(torch.full((2, 2), math.nan), none)) == 0.0
    assert kl_bounded(torch.full((2, 2), math.nan), none).share_bounded == 0.0
    empty = ragged(fill=math.nan, mask=NOTHING)
    assert not group_advantage(empty, scale="std").any()
    assert not value_terms(empty).any() and not value_terms(empty, "per_decision").any()
    assert float(self_normalized_value(torch.zeros(3), torch.ones(3))) == 0.0
