"""Inclusion probabilities of a finished-first cut against order statistics, against exact rationals, and at the edges."""

import itertools
from fractions import Fraction
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import PrefixTree, TabularPolicy, enumerate_law
from testbed.core.errors import InputError
from testbed.exact.inclusion import inclusion_probabilities, inclusion_weights, length_law


def rational_inclusion(law, n, m):
    """E[min(1, (m - Below)+ / (Ties + 1))] by listing the lengths of the n - 1 others, in rationals."""
    answer = []
    for mine in range(len(law)):
        total = Fraction(0)
        for others in itertools.product(range(len(law)), repeat=n - 1):
            prob = Fraction(1)
            for length in others:
                prob *= law[length]
            below, ties = sum(o < mine for o in others), sum(o == mine for o in others)
            total += prob * min(Fraction(1), Fraction(max(m - below, 0), ties + 1))
        answer.append(total)
    return answer


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("law", [(1, 2, 4), (0, 3, 1), (1, 0, 1), (0, 1, 0), (5,)])
def test_formula_equals_the_listing_of_all_others(law, n):
    exact = [Fraction(weight, sum(law)) for weight in law]
    for m in range(1, n + 1):
        found = inclusion_probabilities(torch.tensor([float(p) for p in exact], dtype=torch.float64), n, m)
        assert found.tolist() == pytest.approx([float(p) for p in rational_inclusion(exact, n, m)], abs=1e-13)


def expected_places(cumulative, n, m):
    """E[min(m, Binomial(n, cumulative))]: how many places responses of at most this length fill."""
    return sum(comb(n, k) * cumulative**k * (1 - cumulative) ** (n - k) * min(k, m) for k in range(n + 1))


@given(weights=st.lists(st.floats(0.05, 1), min_size=1, max_size=6), n=st.integers(1, 40), data=st.data())
def test_inclusion_fills_the_places_length_by_length(weights, n, data):
    m = data.draw(st.integers(1, n))
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    filled = (n * p * inclusion_probabilities(p, n, m)).cumsum(0).tolist()
    assert filled == pytest.approx([expected_places(min(c, 1.0), n, m) for c in p.cumsum(0).tolist()], rel=1e-10)


@given(weights=st.lists(st.sampled_from([0, 1, 3, 20]), min_size=2, max_size=5).filter(any), n=st.integers(1, 12))
def test_shorter_is_never_less_likely_to_be_kept(weights, n):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    for m in range(1, n + 1):
        found = inclusion_probabilities(p, n, m)
        assert (
            bool((found.diff() <= 1e-12).all()) and bool((found[p > 0] > 0).all()) and bool((found <= 1 + 1e-12).all())
        )


def test_large_batches_keep_their_digits():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = inclusion_probabilities(p, 4000, 3000)
    assert float((4000 * p * found).sum()) == pytest.approx(3000, rel=1e-9)
    assert found[0] == pytest.approx(1, abs=1e-9) and found[2] < 1e-9


def test_controls_have_no_bias():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert torch.allclose(inclusion_probabilities(p, 7, 7), torch.ones(3, dtype=torch.float64), atol=1e-13)
    assert inclusion_probabilities(torch.tensor([0.0, 1.0]), 7, 3)[1] == pytest.approx(3 / 7, abs=1e-13)


def test_weights_average_one_over_what_is_kept_and_peak_on_the_longest():
    env, pi = PrefixTree(3, 3, rewards=[0.0] * 27, eos=2), TabularPolicy.random(3, 3, 4)
    law = enumerate_law(env, pi, pi)
    weights = inclusion_weights(law, 5, 2)
    kept = law.probs / weights  # pi (n/m) Incl
    assert float(kept.sum()) == pytest.approx(1, abs=1e-12) and float((kept * weights).sum()) == pytest.approx(
        1, abs=1e-12
    )
    assert int(law.batch.lengths[weights.argmax()]) == 3 and float(weights.max()) > 1 > float(weights.min())
    assert float(length_law(law).sum()) == pytest.approx(1, abs=1e-12) and length_law(law)[0] == 0


@pytest.mark.parametrize(("lengths", "n", "m"), [([1.0], 3, 0), ([1.0], 3, 4), ([0.5, 0.4], 2, 1), ([1.5, -0.5], 2, 1)])
def test_what_is_no_cut_or_no_law_is_refused(lengths, n, m):
    with pytest.raises(InputError):
        inclusion_probabilities(torch.tensor(lengths), n, m)
