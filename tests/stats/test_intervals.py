"""Coverage by exact summation over binomial laws, and the self-normalized ratio that stays in its range."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.concentration import bennett_tail
from testbed.stats.intervals import (
    bennett_interval,
    bootstrap_interval,
    clopper_pearson,
    empirical_bernstein_interval,
    self_normalized_interval,
)

SEEDS = SeedTree("tests of intervals")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def coverage(interval_of, n, p):
    """Exact probability that the interval of n Bernoulli(p) terms holds p."""
    return sum(binom.pmf(k, n, p) for k in range(n + 1) if p in interval_of(k))


def terms(k, n):
    return f64([1.0] * k + [0.0] * (n - k))


@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_exact_coverage_of_clopper_pearson(p, level):
    assert coverage(lambda k: clopper_pearson(k, 30, level=level), 30, p) >= level


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_exact_coverage_of_the_mean_intervals(p, level):
    n, bounds = 40, {"low": 0.0, "high": 1.0, "level": level}
    assert coverage(lambda k: bennett_interval(terms(k, n), variance=p * (1 - p), **bounds), n, p) >= level
    assert coverage(lambda k: empirical_bernstein_interval(terms(k, n), **bounds), n, p) >= level


def test_mean_intervals_spend_half_of_what_is_left_on_each_side():
    x = terms(500, 1000)
    radius = bennett_interval(x, low=0.0, high=1.0, variance=0.25, level=0.9).high - 0.5
    assert bennett_tail(radius, 1000, variance=0.25, bound=1.0) == pytest.approx(0.05, rel=1e-6)
    cost = math.log(2 / 0.05)
    by_hand = math.sqrt(2 * (250 / 999) * cost / 1000) + 7 * cost / (3 * 999)
    assert empirical_bernstein_interval(x, low=0.0, high=1.0, level=0.9).high == pytest.approx(0.5 + by_hand, rel=1e-12)


def test_a_higher_level_is_wider_and_more_terms_are_narrower():
    few, many = terms(10, 100), terms(500, 5000)
    for interval_of in (
        lambda x, level: bennett_interval(x, low=0.0, high=1.0, variance=0.09, level=level),
        lambda x, level: empirical_bernstein_interval(x, low=0.0, high=1.0, level=level),
        lambda x, level: clopper_pearson(int(x.sum()), len(x), level=level),
        lambda x, level: bootstrap_interval(x, torch.mean, seeds=SEEDS["width"], level=level),
    ):
        assert interval_of(few, 0.99).width > interval_of(few, 0.8).width
        assert interval_of(many, 0.95).width < interval_of(few, 0.95).width
        assert 0.1 in interval_of(few, 0.95)


def test_clopper_pearson_ends():
    assert (clopper_pearson(0, 0).low, clopper_pearson(0, 0).high) == (0.0, 1.0)
    assert clopper_pearson(0, 10).high == pytest.approx(1 - 0.025**0.1, rel=1e-10)
    assert clopper_pearson(10, 10).low == pytest.approx(0.025**0.1, rel=1e-10)
    interval = clopper_pearson(3, 10)
    assert binom.sf(2, 10, interval.low) == pytest.approx(0.025, rel=1e-8)
    assert binom.cdf(3, 10, interval.high) == pytest.approx(0.025, rel=1e-8)


def test_mean_intervals_stay_in_the_range_and_know_one_term():
    assert empirical_bernstein_interval(f64([0.3]), low=0.0, high=1.0).width == 1.0
    constant = bennett_interval(f64([2.0, 2.0]), low=2.0, high=2.0, variance=0.0)
    assert (constant.low, constant.high) == (2.0, 2.0)
    for value in (0.0, 1.0):
        interval = empirical_bernstein_interval(f64([value] * 5), low=0.0, high=1.0)
        assert 0.0 <= interval.low <= interval.high <= 1.0


def test_self_normalized_rewards_of_one_leave_no_doubt():
    """Behavior (.9, .1) and target (.1, .9), 50 draws of which 5 are of the rare action."""
    weights = f64([0.1 / 0.9] * 45 + [0.9 / 0.1] * 5)
    interval = self_normalized_interval(weights, torch.ones(50), seeds=SEEDS["ones"])
    assert (interval.low, interval.high) == (1.0, 1.0)
    unnormalized = bootstrap_interval(weights, torch.mean, seeds=SEEDS["ones"])
    assert unnormalized.width > 0.3  # the recipe that forgets to normalize


@given(
    st.lists(st.tuples(st.floats(0.0, 1e200), st.floats(-5.0, 5.0)), min_size=1, max_size=12).filter(
        lambda rows: any(w > 0 for w, _ in rows)
    )
)
def test_self_normalized_interval_never_leaves_the_values(rows):
    weights, values = (f64(list(column)) for column in zip(*rows, strict=True))
    interval = self_normalized_interval(weights, values, seeds=SEEDS["range"], resamples=100)
    assert float(values.min()) <= interval.low <= interval.high <= float(values.max())


def test_draws_that_miss_every_weight_widen_the_interval():
    weights, values = f64([1.0, 0.0, 0.0]), f64([0.5, 0.0, 1.0])
    interval = self_normalized_interval(weights, values, seeds=SEEDS["rare"])
    assert (interval.low, interval.high) == (0.0, 1.0)  # 8 of 27 draws say nothing


def test_self_normalized_scale_invariance_and_agreement_with_the_general_form():
    weights, values = f64([0.2, 1.0, 3.0, 0.7, 1.1]), f64([1.0, 0.0, 2.0, -1.0, 0.5])
    ours = self_normalized_interval(weights, values, seeds=SEEDS["same"])
    scaled = self_normalized_interval(weights * 1e250, values, seeds=SEEDS["same"])
    general = bootstrap_interval(
        torch.stack([weights, values], 1), lambda r: (r[:, 0] * r[:, 1]).sum() / r[:, 0].sum(), seeds=SEEDS["same"]
    )
    for other in (scaled, general):
        assert (other.low, other.high) == (pytest.approx(ours.low, rel=1e-10), pytest.approx(ours.high, rel=1e-10))


def test_the_stream_decides_the_draws():
    rows = torch.arange(30.0)
    first, again, other = (bootstrap_interval(rows, torch.mean, seeds=SEEDS[name]) for name in ("a", "a", "b"))
    assert first == again
    assert first != other


def test_bootstrap_of_a_mean_approaches_its_known_limit():
    """For 0/1 rows the draws are binomial, so the exact percentile ends are known to one count in 200."""
    interval = bootstrap_interval(terms(60, 200), torch.mean, seeds=SEEDS["binomial"], resamples=4000)
    assert abs(interval.low - binom.ppf(0.025, 200, 0.3) / 200) <= 2 / 200
    assert abs(interval.high - binom.ppf(0.975, 200, 0.3) / 200) <= 2 / 200


def test_one_row_is_its_own_interval():
    assert bootstrap_interval(f64([3.0]), torch.mean, seeds=SEEDS).width == 0.0
    assert self_normalized_interval(f64([2.0]), f64([3.0]), seeds=SEEDS).low == 3.0


def test_bad_input():
    ones = torch.ones(3)
    with pytest.raises(InputError, match="`level` must be in"):
        clopper_pearson(1, 2, level=95.0)
    with pytest.raises(InputError, match="`successes` must be in"):
        clopper_pearson(3, 2)
    with pytest.raises(InputError, match="must lie in"):
        empirical_bernstein_interval(2 * ones, low=0.0, high=1.0)
    with pytest.raises(InputError, match="at least one row"):
        bennett_interval(torch.zeros(0), low=0.0, high=1.0, variance=0.1)
    with pytest.raises(InputError, match="all finite"):
        bootstrap_interval(f64([1.0, math.inf]), torch.mean, seeds=SEEDS)
    with pytest.raises(InputError, match="finite on every draw"):
        bootstrap_interval(ones, lambda rows: math.nan, seeds=SEEDS)
    with pytest.raises(InputError, match="`resamples`"):
        bootstrap_interval(ones, torch.mean, seeds=SEEDS, resamples=10)
    with pytest.raises(InputError, match="not all 0"):
        self_normalized_interval(0 * ones, ones, seeds=SEEDS)
    with pytest.raises(InputError, match="not all 0"):
        self_normalized_interval(-ones, ones, seeds=SEEDS)
