"""The optimal scalar baseline: a value worked by hand, the quadratic it minimizes, weights of 0, refusals."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.optimal_baseline import optimal_scalar_baseline
from testbed.exact.law import enumerate_law
from testbed.exact.moments import moments
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh


@pytest.fixture
def world():
    target, one, two = (TabularPolicy.random(2, 2, k) for k in range(3))
    return target, enumerate_law(PrefixTree.random(2, 2, 3), target, PrefixSchedule((one, two), cuts((1,))))


def test_value_worked_by_hand():
    # pi = (1/4, 3/4), mu = (1/2, 1/2): W = (1/2, 3/2), |s|^2 = (2 * 9/16, 2 * 1/16), R = (3, 1)
    # mu W^2 |s|^2 = (9/64, 9/64), so b* = 2 and the drop is (9/16)^2 / (9/32)
    pi = TabularPolicy.from_probs(torch.tensor([[0.25, 0.75]]))
    mu = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5]]))
    law = enumerate_law(PrefixTree(2, 1, rewards=[3.0, 1.0]), pi, mu)
    found = optimal_scalar_baseline(law.batch, weigh("sequence_product", law.batch), pi, law.probs)
    assert found.value == pytest.approx(2.0, rel=1e-14)
    assert found.variance_drop == pytest.approx(9 / 8, rel=1e-14)


@pytest.mark.parametrize("rule", ["sequence_product", "prefix"])
def test_variance_is_the_parabola_the_docstring_states(world, rule):
    pi, law = world
    w = weigh(rule, law.batch)

    def variance(b):
        return float(moments(law, gradient_terms(law.batch, w, pi, law.batch.reward - b)).variance.sum())

    found = optimal_scalar_baseline(law.batch, w, pi, law.probs)
    assert variance(0.0) - variance(found.value) == pytest.approx(found.variance_drop, rel=1e-12)
    curvature = float(law.expect(gradient_terms(law.batch, w, pi, torch.ones(4)).square().flatten(1).sum(1)))
    for step in (-0.3, 0.2):
        assert variance(found.value + step) == pytest.approx(variance(found.value) + step**2 * curvature, rel=1e-12)


def test_a_sample_in_the_proportions_of_its_law_gives_the_value_of_the_law():
    pi = TabularPolicy.from_probs(torch.tensor([[0.2, 0.3, 0.5]]))
    mu = TabularPolicy.from_probs(torch.tensor([[0.25, 0.25, 0.5]]))
    law = enumerate_law(PrefixTree(3, 1, rewards=[1.0, -2.0, 0.5]), pi, mu)
    sample = law.batch.select(torch.tensor([2, 0, 1, 2]))
    exact = optimal_scalar_baseline(law.batch, weigh("sequence_product", law.batch), pi, law.probs)
    assert optimal_scalar_baseline(sample, weigh("sequence_product", sample), pi) == pytest.approx(exact, rel=1e-12)


def test_zero_scores_leave_nothing_to_choose():
    pi = TabularPolicy(torch.tensor([[0.0, float("-inf")]]))
    law = enumerate_law(PrefixTree(2, 1, rewards=[1.0, 5.0]), pi, TabularPolicy(torch.zeros(1, 2)))
    assert optimal_scalar_baseline(law.batch, weigh("sequence_product", law.batch), pi, law.probs) == (0.0, 0.0)


def test_removed_responses_do_not_count_whatever_their_reward(world):
    pi, law = world
    w = weigh("sequence_product", law.batch).value.clone()
    w[1] = 0.0
    reward = law.batch.reward.clone()
    reward[1] = 1e300
    found = optimal_scalar_baseline(law.batch.replaced(reward=reward), w, pi, law.probs)
    assert found == optimal_scalar_baseline(law.batch, w, pi, law.probs)


def test_refusals(world):
    pi, law = world
    w = weigh("sequence_product", law.batch)
    with pytest.raises(InputError, match="`probs` must have shape"):
        optimal_scalar_baseline(law.batch, w, pi, law.probs[:-1])
    with pytest.raises(InputError, match="total 1"):
        optimal_scalar_baseline(law.batch, w, pi, law.probs * 0.9)
    with pytest.raises(InputError, match="`w` must have shape"):
        optimal_scalar_baseline(law.batch, torch.ones(3, 2), pi)
