"""Divergence of a family as a function of its knob: hand-computed numbers, recursion against enumeration, lost support."""

import math
from itertools import pairwise

import pytest
import torch

import testbed.exact.divergence_profile as profile
from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.divergence_profile import Divergence, divergence_profile
from testbed.policies.families import logit_noise, mixture, temperature
from testbed.policies.markov import MarkovPolicy
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated

FIELDS = ("token_kl", "token_chi2", "response_kl", "mean_weight", "log_response_d2")


def numbers(row):
    return [getattr(row, name) for name in FIELDS]


def test_two_tokens_by_hand():
    tree = PrefixTree(2, 2, rewards=[0.0] * 4)
    pi, mu = (TabularPolicy.from_probs(torch.tensor([p] * 3).double()) for p in ([0.5, 0.5], [0.8, 0.2]))
    (row,) = divergence_profile(tree, pi, lambda weight: mixture(pi, mu, weight), [1.0])
    kl = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    assert numbers(row) == pytest.approx([kl, 0.5625, 2 * kl, 1.0, 2 * math.log(1.5625)], rel=1e-12)
    assert row.response_d2 == pytest.approx(1.5625**2, rel=1e-12)


@pytest.mark.parametrize(
    "family",
    [
        lambda pi, knob: temperature(pi, 1 + knob),
        lambda pi, knob: logit_noise(pi, knob, 3),
        lambda pi, knob: Truncated(pi, temperature=1 + knob, top_k=2),
    ],
    ids=["temperature", "logit_noise", "truncated"],
)
def test_recursion_agrees_with_enumeration(family):
    env = MarkovEnvironment.random(3, 3, 5, seed=1)
    pi = MarkovPolicy.random(env.transition, 1)
    for row in divergence_profile(env, pi, lambda knob: family(pi, knob), [0.25, 1.0]):
        reference = profile._by_enumeration(env, pi, family(pi, row.knob), row.knob)
        assert numbers(row) == pytest.approx(numbers(reference), rel=1e-10, abs=1e-12)
        assert row.token_kl > 1e-3


def test_zero_knob_is_zero_divergence_and_knobs_move_away():
    tree = PrefixTree.random(3, 3, 0, eos=0)
    pi = TabularPolicy.random(3, 3, 0)
    rows = divergence_profile(tree, pi, lambda sigma: logit_noise(pi, sigma, 1), [0.0, 0.1, 0.3, 1.0])
    assert numbers(rows[0]) == pytest.approx([0, 0, 0, 1, 0], abs=1e-13)
    assert [r.knob for r in rows] == [0.0, 0.1, 0.3, 1.0]
    for nearer, farther in pairwise(rows):
        assert nearer.token_kl < farther.token_kl and nearer.log_response_d2 < farther.log_response_d2
    assert all(row.mean_weight == pytest.approx(1, abs=1e-12) for row in rows)
    assert all(row.response_kl <= 3 * row.token_kl for row in rows[1:])  # responses that end early are shorter than 3


def test_lost_support_shows_in_the_mean_weight():
    pi = TabularPolicy.from_probs(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64))
    tree = PrefixTree(4, 1, rewards=[1.0, 0.0, 1.0, 0.0])
    (row,) = divergence_profile(tree, pi, lambda p: Truncated(pi, top_p=p), [0.8])
    assert row.mean_weight == pytest.approx(0.8, rel=1e-12)
    assert row.token_kl == pytest.approx(-math.log(0.8), rel=1e-12)


def test_long_horizons_stay_finite_in_logarithms():
    env = MarkovEnvironment.random(4, 3, 512, seed=2)
    pi = MarkovPolicy.random(env.transition, 2)
    (row,) = divergence_profile(env, pi, lambda sigma: logit_noise(pi, sigma, 1), [2.5])
    assert 709 < row.log_response_d2 < math.inf and row.response_d2 == math.inf
    assert row.mean_weight == pytest.approx(1, abs=1e-9)
    assert Divergence(0.0, 0.0, 0.0, 0.0, 1.0, 1.0).response_d2 == math.e


def test_no_knob_is_refused():
    pi = TabularPolicy(torch.zeros(1, 2))
    with pytest.raises(InputError, match="`knobs`"):
        divergence_profile(PrefixTree(2, 1, [0.0, 1.0]), pi, lambda knob: pi, [])
