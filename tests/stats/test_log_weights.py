"""Statistics from log-weights agree with the plain ones, and go where the plain ones overflow."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.stats.log_weights import ess_from_log, renyi2_from_log
from testbed.stats.weight_statistics import ess, renyi2

logs = st.lists(st.floats(-50, 50), min_size=1, max_size=8)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@given(logs)
def test_agrees_with_the_plain_statistics(values):
    log_w = f64(values)
    assert ess_from_log(log_w) == pytest.approx(float(ess(log_w.exp())), rel=1e-10)
    assert renyi2_from_log(log_w) == pytest.approx(float(renyi2(log_w.exp())), rel=1e-10, abs=1e-10)


@given(logs, st.floats(-1e6, 1e6))
def test_a_common_shift_changes_only_renyi(values, shift):
    log_w = f64(values)
    moved = log_w + shift
    assert ess_from_log(moved) == pytest.approx(float(ess_from_log(log_w)), rel=1e-7)
    assert renyi2_from_log(moved) == pytest.approx(float(renyi2_from_log(log_w)) + 2 * shift, rel=1e-9, abs=1e-9)


def test_long_products_that_no_float_holds():
    log_w = f64([20000.0, 20000.0 + math.log(3.0), -20000.0])
    assert ess_from_log(log_w) == pytest.approx(1.6, rel=1e-10)
    assert ess(log_w.exp()) == 1.0  # the plain form can only give its lower bound
    assert renyi2_from_log(log_w) == pytest.approx(40000.0 + math.log(10 / 3), rel=1e-12)


def test_defined_answers_at_the_ends():
    assert ess_from_log(f64([-math.inf, -math.inf])) == 0.0
    assert ess_from_log(f64([math.inf, 0.0])) == 1.0
    assert ess_from_log(f64([])) == 0.0
    assert ess_from_log(f64([-math.inf, 3.0])) == 1.0
    assert renyi2_from_log(f64([-math.inf])) == -math.inf
    assert renyi2_from_log(f64([math.inf])) == math.inf
    assert renyi2_from_log(f64([])) == 0.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
def test_poison_in_padding_changes_no_bit(poison):
    log_w, mask = f64([0.3, -0.2, poison]), torch.tensor([True, True, False])
    assert ess_from_log(log_w, mask) == ess_from_log(log_w[:2])
    assert renyi2_from_log(log_w, mask) == renyi2_from_log(log_w[:2])


def test_exact_law():
    log_w, law = f64([6 / 7, 4 / 3]).log(), f64([0.7, 0.3])
    assert renyi2_from_log(log_w, probs=law) == pytest.approx(math.log(22 / 21), rel=1e-10)


def test_nan_is_refused():
    with pytest.raises(InputError, match="`log_weights` must not be NaN"):
        ess_from_log(f64([math.nan]))
