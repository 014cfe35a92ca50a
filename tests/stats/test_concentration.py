"""Bennett's inequality against exact binomial tails, and its inverse against itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from testbed.core.errors import InputError
from testbed.stats.concentration import bennett_deviation, bennett_tail, smallest_sample_size


@given(st.integers(1, 2000), st.floats(0.001, 0.999), st.floats(0.0, 1.0))
def test_bounds_every_exact_binomial_tail(n, p, share):
    count = math.ceil(n * p + share * (n - n * p))
    deviation = count / n - p
    exact = binom.sf(count - 1, n, p)
    assert exact <= bennett_tail(deviation - 1e-12, n, variance=p * (1 - p), bound=1 - p) * (1 + 1e-9)


def test_is_not_vacuous():
    """Within a factor of ten of the exact tail at four standard deviations of a rare event."""
    n, p = 2000, 0.01
    count = round(n * p + 4 * math.sqrt(n * p * (1 - p)))
    ratio = bennett_tail(count / n - p, n, variance=p * (1 - p), bound=1 - p) / binom.sf(count - 1, n, p)
    assert 1 < ratio < 10


def test_normal_tail_is_no_bound_for_a_skewed_law():
    n, p = 2000, 0.004
    count = math.ceil(n * p + 5 * math.sqrt(n * p * (1 - p)))
    deviation = count / n - p
    exact = binom.sf(count - 1, n, p)
    assert norm.sf(deviation * math.sqrt(n / (p * (1 - p)))) < exact / 30
    assert exact <= bennett_tail(deviation, n, variance=p * (1 - p), bound=1 - p)


@given(st.integers(1, 10**9), st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.floats(1e-12, 0.9))
def test_deviation_inverts_the_tail(n, variance, bound, alpha):
    t = bennett_deviation(n, variance=variance, bound=bound, alpha=alpha)
    if t < bound:
        assert bennett_tail(t, n, variance=variance, bound=bound) == pytest.approx(alpha, rel=1e-6)
    else:
        assert bennett_tail(bound, n, variance=variance, bound=bound) >= alpha * (1 - 1e-6)


@given(st.integers(1, 10**6), st.floats(0.01, 10.0))
def test_deviation_shrinks_with_n_and_grows_with_confidence(n, variance):
    def deviation(size, alpha):
        return bennett_deviation(size, variance=variance, bound=4.0, alpha=alpha)

    assert deviation(2 * n, 1e-6) <= deviation(n, 1e-6)
    assert deviation(n, 1e-3) <= deviation(n, 1e-6)


def test_edges():
    assert bennett_tail(0.0, 5, variance=1.0, bound=1.0) == 1.0
    assert bennett_tail(0.1, 5, variance=0.0, bound=1.0) == 0.0
    assert bennett_tail(1.1, 5, variance=1.0, bound=1.0) == 0.0
    assert bennett_deviation(5, variance=0.0, bound=1.0, alpha=0.1) == 0.0
    assert bennett_deviation(1, variance=0.25, bound=0.5, alpha=1e-9) == 0.5


def test_bad_input():
    for arguments in ((0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, 0.0), (1, math.nan, 1.0), (1, 1.0, math.inf)):
        with pytest.raises(InputError, match="Bennett's inequality needs"):
            bennett_tail(0.1, arguments[0], variance=arguments[1], bound=arguments[2])
    with pytest.raises(InputError, match="`alpha` must be in"):
        bennett_deviation(1, variance=1.0, bound=1.0, alpha=0.0)


@given(st.integers(1, 10**6))
def test_smallest_sample_size_is_the_smallest(n):
    assert smallest_sample_size(lambda size: size >= n, what="x") == n


def test_an_effect_too_small_is_refused():
    with pytest.raises(InputError, match="the effect must be detectable"):
        smallest_sample_size(lambda size: False, what="the effect")
