"""Distances between prefix laws: by hand, against enumeration, with ends of responses and exogenous noise."""

import pytest
import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.prefix_distance import (
    expected_token_total_variation,
    prefix_total_variation,
    sampler_prefix_law,
)
from testbed.exact.values import prefix_law
from testbed.policies.schedule import PrefixSchedule, cuts, exogenous_hazard, one
from testbed.policies.tabular import TabularPolicy


def bernoulli(p, horizon):
    return TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * (2**horizon - 1), dtype=torch.float64))


def test_independent_tokens_by_hand():
    tree, pi, mu = PrefixTree(2, 3, rewards=[0.0] * 8), bernoulli(0.5, 3), bernoulli(0.8, 3)
    third = (abs(0.64 - 0.25) + 2 * abs(0.16 - 0.25) + abs(0.04 - 0.25)) / 2
    assert prefix_total_variation(tree, pi, mu).tolist() == pytest.approx([0.0, 0.3, third], rel=1e-12)
    assert expected_token_total_variation(tree, pi, mu).tolist() == pytest.approx([0.3, 0.3, 0.3], rel=1e-12)


def test_a_policy_is_at_distance_zero_from_itself():
    tree, pi = PrefixTree.random(3, 3, 0, eos=2), TabularPolicy.random(3, 3, 0)
    assert prefix_total_variation(tree, pi, pi).tolist() == [0.0] * 3
    assert expected_token_total_variation(tree, pi, pi).tolist() == [0.0] * 3


def test_ended_responses_count_as_one_outcome():
    tree, pi, mu = PrefixTree(2, 2, rewards=[0.0] * 4, eos=0), bernoulli(0.5, 2), bernoulli(0.8, 2)
    assert prefix_total_variation(tree, pi, mu).tolist() == pytest.approx([0.0, 0.3], rel=1e-12)
    assert expected_token_total_variation(tree, pi, mu).tolist() == pytest.approx([0.3, 0.2 * 0.3], rel=1e-12)


def test_exogenous_noise_is_averaged():
    tree, pi = PrefixTree(2, 3, rewards=[0.0] * 8), TabularPolicy.random(2, 3, 0)
    mus = (TabularPolicy.random(2, 3, 1), TabularPolicy.random(2, 3, 2))
    schedule = exogenous_hazard(mus, 0.25, 3)
    branches = [PrefixSchedule(mus, f) for f in (one(), cuts((1,)), cuts((2,)))]
    mean = sum(w * prefix_law(tree, b) for w, b in zip((0.5625, 0.25, 0.1875), branches, strict=True))
    torch.testing.assert_close(sampler_prefix_law(tree, schedule), mean, rtol=1e-12, atol=0)
    worst = max(float(prefix_total_variation(tree, pi, b)[2]) for b in branches)
    assert float(prefix_total_variation(tree, pi, schedule)[2]) < worst
    tokens = sum(
        w * expected_token_total_variation(tree, pi, b) for w, b in zip((0.5625, 0.25, 0.1875), branches, strict=True)
    )
    torch.testing.assert_close(expected_token_total_variation(tree, pi, schedule), tokens, rtol=1e-12, atol=0)
