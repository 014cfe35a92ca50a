"""Statistics of few runs: what they are, what their intervals cover, and what resampling across strata would do."""

import numpy as np
import pytest
import scipy.stats

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats import runs
from testbed.stats.interval import Interval
from testbed.stats.intervals import clopper_pearson
from testbed.stats.runs import (
    NEVER,
    Estimate,
    difference_by_seed,
    estimate,
    probability_of_improvement,
    runs_to_tell,
    runs_to_tell_rate,
)

SEEDS = SeedTree("runs")


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end(n, rng):
    values = np.sort(rng.normal(size=n))
    left_out = n // 4
    kept = values[left_out : n - left_out]
    assert abs(float(runs.interquartile_mean(rng.permutation(values))) - kept.mean()) < 1e-12


def test_an_interval_ignores_one_run_that_collapsed():
    steady = [0.9] * 9 + [0.0]
    assert estimate([steady], seeds=SEEDS).value == pytest.approx(0.9, abs=1e-12)
    assert estimate([steady], seeds=SEEDS, statistic=np.mean).value == pytest.approx(0.81, abs=1e-12)


def test_strata_are_drawn_apart():
    """Two constant strata leave nothing to chance; drawn together, the mean would move."""
    strata = [[0.0] * 10, [1.0] * 10]
    apart = estimate(strata, seeds=SEEDS, statistic=np.mean).interval
    together = estimate([[*strata[0], *strata[1]]], seeds=SEEDS, statistic=np.mean).interval
    assert apart.width == 0 and together.width > 0.3
    one_alone = estimate([[5.0], [0.0, 1.0]], seeds=SEEDS, statistic=np.mean).interval
    assert (one_alone.low, one_alone.high) == (5 / 3, 7 / 3)


def missed(repetitions, n, rng):
    """How many intervals at 95 % of the interquartile mean of n normal runs leave the truth out."""
    found = (
        estimate([rng.normal(size=n).tolist()], seeds=SEEDS[number], resamples=400) for number in range(repetitions)
    )
    return sum(0.0 not in one.interval for one in found)


@pytest.mark.stat
def test_few_runs_are_left_out_about_as_often_as_declared(rng, monkeypatch):
    """Five runs, 2000 repetitions, declared 5 %, simulated 6.3 %; a bootstrap whose percentiles are not expanded misses 10.5 %.

    Gate: no more than 176 misses. False alarms 5e-6 at 6.3 %, power .994 at 10.5 % (binomial tails).
    """

    def gate():
        return missed(2000, 5, rng) <= 176

    assert gate()
    monkeypatch.setattr(runs, "expanded", lambda half, *_: half)
    assert not gate()


@pytest.mark.parametrize("n", [2, 5, 10, 40])
def test_expanded_percentiles_of_a_mean_are_its_t_interval(n):
    """The bootstrap of a mean has variance s^2 (n - 1) / n^2; at these percentiles of a normal law it ends where t does."""
    spread = np.sqrt((n - 1) / n)  # of the bootstrap, in s / sqrt(n)
    assert spread * scipy.stats.norm.isf(runs.expanded(0.025, n)) == pytest.approx(
        scipy.stats.t.isf(0.025, n - 1), rel=1e-9
    )
    two = np.sqrt((2 * n - 2) / (2 * n)) * scipy.stats.norm.isf(runs.expanded(0.025, 2 * n, 2))
    assert two == pytest.approx(scipy.stats.t.isf(0.025, 2 * n - 2), rel=1e-9)


@pytest.mark.parametrize(("level", "least"), [(0.95, 50 / 0.0087), (0.993, 40_000)])
def test_draws_suffice_for_the_percentiles_that_are_taken(level, least, rng):
    """Ten runs: 50 draws lie beyond a percentile at 95 %, and where too many would be needed, the most are made."""
    drawn = []

    def counting(values, axis):
        drawn.append(values.shape[0] if values.ndim > 1 else 0)
        return runs.interquartile_mean(values, axis=axis)

    estimate([rng.normal(size=10).tolist()], seeds=SEEDS, statistic=counting, level=level)
    assert least <= sum(drawn) <= 1.05 * least


def test_an_error_is_that_of_the_statistic():
    values = list(np.arange(12.0))
    found = estimate([values], seeds=SEEDS, statistic=np.mean, resamples=20_000)
    assert found.error == pytest.approx(np.std(values, ddof=1) / 12**0.5, rel=0.03)
    split = estimate([values[:6], values[6:]], seeds=SEEDS, statistic=np.mean, resamples=20_000)
    assert split.error == pytest.approx(np.std(values[:6], ddof=1) / 12**0.5, rel=0.03)


def test_pairing_removes_what_seeds_have_in_common(rng):
    common = rng.normal(size=10) * 10
    first, second = common + 1 + rng.normal(size=10) * 0.1, common
    paired = difference_by_seed(first.tolist(), second.tolist(), seeds=SEEDS)
    assert paired.interval.low > 0.5 and abs(paired.value - 1) < 0.2
    shuffled = difference_by_seed(first.tolist(), second[::-1].tolist(), seeds=SEEDS)
    assert shuffled.interval.width > 10 * paired.interval.width


def test_probability_of_improvement_counts_wins_and_half_the_ties():
    found = probability_of_improvement([1.0, 1.0, 0.0, 5.0], [0.0, 1.0, 1.0, 4.0])
    assert found.value == 2.5 / 4 and 0 <= found.interval.low < found.value < found.interval.high <= 1
    assert found.interval.low == clopper_pearson(2, 4).low and found.interval.high == clopper_pearson(3, 4).high


def test_ten_wins_in_ten_are_not_certainty():
    found = probability_of_improvement([1.0] * 10, [0.0] * 10)
    assert found.value == 1.0 and found.interval.high == 1.0
    assert found.interval.low == pytest.approx(0.025 ** (1 / 10), abs=1e-12)
    assert probability_of_improvement([0.0] * 10, [1.0] * 10).interval.low == 0.0


def test_the_runs_needed_give_the_power_asked_for():
    """A bound half a deviation away: the normal test with n runs leaves it out as often as promised, with fewer not."""
    width = 2 * 1.959964 / 5  # of an interval of 25 runs of deviation 1
    for value, bound in ((0.5, 0.0), (0.0, -0.5), (0.2, 0.7)):
        found = Estimate(value=value, interval=Interval(value - width / 2, value + width / 2, 0.95, ""), runs=25)
        needed = runs_to_tell(found, bound, power=0.9)
        power = [scipy.stats.norm.sf(1.959964 - 0.5 * n**0.5) for n in (needed - 2, needed)]
        assert needed == 43 and power[0] < 0.9 <= power[1] + 1e-3
        assert runs_to_tell(found, value) == NEVER


def test_the_runs_needed_are_those_of_the_statistic_that_is_judged():
    """One run in ten collapsed: the mean would need many more runs than the interquartile mean."""
    values = [0.06, 0.05, 0.07, 0.05, 0.06, 0.04, 0.05, 0.07, 0.06, -0.9]
    found, mean = (estimate([values], seeds=SEEDS, statistic=f) for f in (runs.interquartile_mean, np.mean))
    assert 10 * runs_to_tell(found, -0.05) < runs_to_tell(mean, -0.05)


@pytest.mark.parametrize(("count", "bound"), [(2, 0.5), (7, 0.5), (4, 0.2)])
def test_the_runs_needed_for_a_rate_give_the_power_asked_for(count, bound):
    def power(n):
        told = (clopper_pearson(k, n) for k in range(n + 1))
        out = [interval.high < bound if count / 10 < bound else interval.low > bound for interval in told]
        return sum(scipy.stats.binom.pmf(k, n, count / 10) for k in range(n + 1) if out[k])

    needed = runs_to_tell_rate(count, 10, bound)
    assert power(needed - 4) < 0.9 <= power(needed)
    assert runs_to_tell_rate(5, 10, 0.5) == NEVER


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(InputError, match="same seeds"):
        difference_by_seed([1.0], [1.0, 2.0], seeds=SEEDS)
    with pytest.raises(InputError, match="not finite"):
        estimate([[1.0, float("nan")]], seeds=SEEDS)
    with pytest.raises(InputError, match="at least one"):
        estimate([], seeds=SEEDS)
