"""Target to the end of the segment, behaviors afterwards: against the two policies' own values and by hand."""

import pytest
import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.segment_values import segment_end_action_values, target_through
from testbed.exact.values import action_values
from testbed.policies.schedule import PrefixSchedule, after_token, cuts
from testbed.policies.tabular import TabularPolicy


@pytest.fixture
def policies():
    return [TabularPolicy.random(2, 3, seed) for seed in range(3)]


def test_one_segment_is_the_targets_own_value(policies):
    pi, mu, _ = policies
    tree = PrefixTree.random(2, 3, 0)
    assert torch.equal(segment_end_action_values(tree, pi, PrefixSchedule((mu,), cuts(()))), action_values(tree, pi))


def test_one_token_per_segment_is_the_schedules_value(policies):
    pi, mu, other = policies
    tree, schedule = PrefixTree.random(2, 3, 0), PrefixSchedule((mu, other, mu), cuts((1, 2)))
    assert torch.equal(segment_end_action_values(tree, pi, schedule), action_values(tree, schedule))


def test_the_segment_of_the_token_decides_where_the_target_stops(policies):
    pi, mu, other = policies
    tree, schedule = PrefixTree.random(2, 3, 0), PrefixSchedule((mu, other), cuts((2,)))
    value = segment_end_action_values(tree, pi, schedule)
    p, q, reward = pi.table.exp(), other.table.exp(), tree.rewards.reshape(2, 2, 2)
    after_two = (q[3:].reshape(2, 2, 2) * reward).sum(2)  # the last token is a behavior's
    torch.testing.assert_close(value[0], (p[1:3] * after_two).sum(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(value[1:3], after_two, rtol=1e-12, atol=0)
    assert (value[0] - action_values(tree, pi)[0]).abs().max() > 1e-3
    assert (value[0] - action_values(tree, schedule)[0]).abs().max() > 1e-3


def test_boundaries_stay_where_the_tokens_put_them(policies):
    pi, mu, other = policies
    mixed = target_through(pi, PrefixSchedule((mu, other), after_token(1)), 0).log_prob_table(2, 3)
    expected = pi.table.clone()
    expected[[2, 4, 5, 6]] = other.table[[2, 4, 5, 6]]  # prefixes (1), (0, 1), (1, 0), (1, 1)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-15)


def test_an_ended_response_has_no_value(policies):
    pi, mu, other = policies
    tree = PrefixTree.random(2, 3, 0, eos=1)
    value = segment_end_action_values(tree, pi, PrefixSchedule((mu, other), cuts((1,))))
    assert bool((value[[2, 4, 5, 6]] == 0).all()) and float(value[0, 1]) == float(tree.rewards[7])
