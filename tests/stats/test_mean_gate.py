"""The mean gate keeps its promises exactly: false alarms and power are summed over a binomial law, nothing is drawn."""

import math

import pytest
import torch
from scipy.stats import binom, norm

from testbed.core.errors import InputError
from testbed.stats.concentration import bennett_tail
from testbed.stats.gates import MeanGate


def two_point(low, high, p):
    """Mean and variance of a term that is `high` with probability p, else `low`."""
    return low + p * (high - low), p * (1 - p) * (high - low) ** 2


def rejection(gate, low, high, p):
    """Exact probability that n such terms fail the gate, by deciding every possible count."""
    down, up = gate.thresholds(gate.n)
    total = 0.0
    for count in range(gate.n + 1):
        deviation = low + (high - low) * count / gate.n - gate.mean
        if deviation > up or deviation < -down:
            total += binom.pmf(count, gate.n, p)
    return total


LAWS = [(0.0, 1.0, 0.5), (0.5, 20.0, 0.02), (-3.0, 1.0, 0.9)]


@pytest.mark.parametrize(("low", "high", "p"), LAWS)
@pytest.mark.parametrize("alpha", [0.2, 1e-3, 5e-9])
def test_exact_false_alarm_rate_is_below_alpha(low, high, p, alpha):
    mean, variance = two_point(low, high, p)
    effect = 0.5 * math.sqrt(variance)
    gate = MeanGate(name="g", mean=mean, variance=variance, low=low, high=high, effect=effect, alpha=alpha)
    assert 0 < rejection(gate, low, high, p) <= alpha


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_exact_power_against_a_planted_shift(direction):
    gate = MeanGate(name="g", mean=0.5, variance=0.25, low=0.0, high=1.0, effect=0.1, power=0.9)
    assert rejection(gate, 0.0, 1.0, 0.5 + direction * 0.1) >= 0.9
    assert rejection(gate, 0.0, 1.0, 0.5 + direction * 0.02) < 0.1


def test_a_normal_threshold_would_break_the_rate_on_a_skewed_weight():
    low, high, p, n, alpha = 0.9, 26.0, 0.004, 2000, 5e-9
    mean, variance = two_point(low, high, p)
    limit = norm.isf(alpha / 2) * math.sqrt(variance / n)
    counts = [c for c in range(n + 1) if abs(low + (high - low) * c / n - mean) > limit]
    assert binom.pmf(counts, n, p).sum() > 100 * alpha


def test_decisions_follow_the_sample():
    gate = MeanGate(name="g", mean=0.5, variance=0.25, low=0.0, high=1.0, effect=0.05)
    balanced = torch.arange(gate.n) % 2 * 1.0
    passed = gate.decide(balanced)
    assert passed
    assert (passed.n, passed.alpha, passed.power) == (gate.sample_size(), 5e-9, 0.99)
    shifted = balanced.clone()
    shifted[: gate.n // 10] = 1.0
    failed = gate.decide(shifted)
    assert not failed.passed
    assert failed.statistic == pytest.approx(0.05, abs=1e-3)
    assert failed.statistic > failed.threshold
    assert not gate.decide(1.0 - shifted)


SKEWED = {"mean": 0.89, "variance": 0.02 * 0.98 * 19.5**2, "low": 0.5, "high": 20.0}


def test_the_two_sides_share_alpha():
    gate = MeanGate(name="g", effect=1.0, alpha=1e-3, **SKEWED)
    for t, bound in zip(gate.thresholds(5000), (0.39, 19.11), strict=True):
        assert t < bound
        assert bennett_tail(t, 5000, variance=SKEWED["variance"], bound=bound) == pytest.approx(5e-4, rel=1e-6)


def test_each_side_has_its_own_limit():
    gate = MeanGate(name="g", effect=0.4, alpha=1e-3, power=0.5, **SKEWED)
    down, up = gate.thresholds(gate.n)
    assert down < 0.95 * up
    between = (down + up) / 2
    assert gate.decide(torch.full((gate.n,), SKEWED["mean"] + between))
    assert not gate.decide(torch.full((gate.n,), SKEWED["mean"] - between))


def test_a_value_outside_the_range_fails_at_once():
    gate = MeanGate(name="g", mean=0.5, variance=0.25, low=0.0, high=1.0, effect=0.1)
    sample = torch.arange(gate.n) % 2 * 1.0
    sample[0] = 1.5
    result = gate.decide(sample)
    assert not result
    assert "outside" in result.reason


def test_a_constant_term_needs_one_draw():
    gate = MeanGate(name="g", mean=1.0, variance=0.0, low=0.0, high=2.0, effect=0.5)
    assert gate.n == 1
    assert gate.decide(torch.tensor([1.0]))
    assert not gate.decide(torch.tensor([1.001]))


def test_sample_size_falls_with_the_effect_and_rises_with_the_promises():
    def size(**changes):
        settings = {"effect": 0.1, "power": 0.9, "alpha": 5e-9} | changes
        return MeanGate(name="g", mean=0.5, variance=0.25, low=0.0, high=1.0, **settings).n

    assert size(effect=0.2) < size() < size(effect=0.05)
    assert size() < size(power=0.999)
    assert size(alpha=1e-3) < size()


def test_price_of_bennett_at_range_over_deviation_18():
    """Thresholds of 0.3, 0.1 and 0.05 standard deviations are reached at about 1,000, 6,000 and 20,000 draws."""
    low, high, p = 0.0, 18.0, 0.5
    gate = MeanGate(name="g", mean=1.0, variance=1.0, low=low, high=high, effect=p)
    for n, expected in ((1000, 0.3), (6000, 0.1), (20000, 0.05)):
        assert gate.thresholds(n)[1] == pytest.approx(expected, rel=0.15)


def test_bad_declarations_and_samples():
    good = {"name": "g", "mean": 0.5, "variance": 0.25, "low": 0.0, "high": 1.0, "effect": 0.1}
    for change, message in (
        ({"mean": 2.0}, "`mean` must lie"),
        ({"variance": 0.3}, "`variance` must be in"),
        ({"variance": math.nan}, "`variance` must be in"),
        ({"effect": 0.0}, "`effect` must be > 0"),
        ({"effect": 0.6}, "`effect` must keep"),
        ({"alpha": 0.0}, "`alpha` and `power`"),
        ({"power": 1.0}, "`alpha` and `power`"),
    ):
        with pytest.raises(InputError, match=message):
            MeanGate(**(good | change))
    gate = MeanGate(**good)
    with pytest.raises(InputError, match=f"exactly sample_size\\(\\) = {gate.n} draws; found 5"):
        gate.decide(torch.zeros(5))
    with pytest.raises(InputError, match="no NaN"):
        gate.decide(torch.full((gate.n,), math.nan))
