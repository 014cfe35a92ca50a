"""The law gate keeps its promises exactly: all count vectors of a small law are enumerated and decided."""

import itertools
import math

import pytest
import torch
from scipy.stats import binom, multinomial

from testbed.core.errors import InputError
from testbed.stats.gates import LawGate

STATED, FAULTY = (0.6, 0.3, 0.1), (0.2, 0.3, 0.5)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def draws(counts):
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def rejection(gate, law):
    """Exact probability that draws from `law` fail the gate."""
    n, total = gate.n, 0.0
    for first, second in itertools.product(range(n + 1), repeat=2):
        if first + second <= n:
            counts = (first, second, n - first - second)
            if not gate.decide(draws(counts)):
                total += multinomial.pmf(counts, n, law)
    return total


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_exact_false_alarm_rate_and_power(alpha):
    gate = LawGate(name="g", probs=f64(STATED), alternative=f64(FAULTY), alpha=alpha, power=0.9)
    assert gate.n < 80
    assert 0 < rejection(gate, STATED) <= alpha
    assert rejection(gate, FAULTY) >= 0.9


@pytest.mark.parametrize("n", [1, 7, 60, 1000])
def test_critical_counts_are_the_outermost_within_the_share(n):
    gate = LawGate(name="g", probs=f64(STATED), alternative=f64(FAULTY))
    for cell, (low, high) in enumerate(zip(*gate.critical_counts(n), strict=True)):
        p = STATED[cell]
        too_low = [c for c in range(n + 1) if binom.cdf(c, n, p) <= gate.share]
        too_high = [c for c in range(n + 1) if binom.sf(c - 1, n, p) <= gate.share]
        assert low == max(too_low, default=-1)
        assert high == min(too_high, default=n + 1)


def test_decision_is_that_of_the_critical_counts():
    gate = LawGate(name="g", probs=f64((0.5, 0.5)), alternative=f64((0.7, 0.3)))
    low, high = (int(side[0]) for side in gate.critical_counts(gate.n))
    assert gate.decide(draws((low + 1, gate.n - low - 1)))
    assert not gate.decide(draws((low, gate.n - low)))
    assert gate.decide(draws((high - 1, gate.n - high + 1)))
    assert not gate.decide(draws((high, gate.n - high)))


def test_a_cell_of_probability_zero_may_not_be_drawn_once():
    gate = LawGate(name="g", probs=f64((0.5, 0.5, 0.0)), alternative=f64((0.4, 0.5, 0.1)))
    half = gate.n // 2
    assert gate.decide(draws((half, gate.n - half, 0)))
    result = gate.decide(draws((half, gate.n - half - 1, 1)))
    assert not result
    assert "cell 2 drawn 1 times, expected 0" in result.reason
    assert result.statistic == 0.0


def test_a_certain_cell_must_always_be_drawn():
    gate = LawGate(name="g", probs=f64((1.0, 0.0)), alternative=f64((0.9, 0.1)))
    assert gate.decide(draws((gate.n, 0)))
    assert not gate.decide(draws((gate.n - 1, 1)))


def test_effect_is_the_total_variation():
    assert LawGate(name="g", probs=f64(STATED), alternative=f64(FAULTY)).effect == pytest.approx(0.4)


def test_size_follows_from_the_promises():
    def size(**changes):
        return LawGate(**({"name": "g", "probs": f64(STATED), "alternative": f64(FAULTY), "power": 0.9} | changes)).n

    assert size(alpha=1e-3) < size() < size(power=0.999)
    assert size() < size(alternative=f64((0.55, 0.3, 0.15)))


def test_bad_declarations_and_samples():
    for probs, alternative in (
        ((0.6, 0.3), (0.5, 0.5)),
        ((0.5, 0.5), (0.5, 0.5)),
        ((1.5, -0.5), (0.5, 0.5)),
        ((math.nan, 1.0), (0.5, 0.5)),
    ):
        with pytest.raises(InputError):
            LawGate(name="g", probs=f64(probs), alternative=f64(alternative))
    gate = LawGate(name="g", probs=f64(STATED), alternative=f64(FAULTY))
    with pytest.raises(InputError, match="exactly sample_size"):
        gate.decide(torch.zeros(gate.n + 1, dtype=torch.int64))
    with pytest.raises(InputError, match="cell numbers must be in"):
        gate.decide(torch.full((gate.n,), 3))
