"""Weight statistics against hand-computed numbers, exact laws, and inputs that break the textbook formulas."""

import copy
import itertools
import json
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.stats.weight_sample import WeightStatistic
from testbed.stats.weight_statistics import chi2, ess, mean_weight, renyi2, second_moment

ALL = (ess, mean_weight, second_moment, chi2, renyi2)
POISON = (math.nan, math.inf, -math.inf, 1e30, -1e30)
positive = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "expected"), [([1, 1, 1, 1], 4.0), ([1, 2, 3, 4], 10 / 3), ([100, 1, 1, 1], 1.0606)]
)
def test_ess_is_kish_not_one_over_the_sum_of_squares(weights, expected):
    assert ess(f64(weights)) == pytest.approx(expected, rel=1e-4)


def test_capping_raises_the_ess_so_raw_and_applied_are_told_apart():
    raw = f64([100.0, 1.0, 1.0, 1.0])
    before, after = ess(raw), ess(raw.clamp(max=2.0), which="applied")
    assert (before / 4, after / 4) == (pytest.approx(0.265, abs=5e-4), pytest.approx(0.893, abs=5e-4))
    assert (before.which, after.which) == ("raw", "applied")


@given(positive, st.floats(1e-250, 1e250))
def test_ess_is_scale_invariant_and_in_one_to_n(weights, scale):
    w = f64(weights)
    assert 1.0 - 1e-12 <= ess(w) <= len(weights)
    assert ess(w * scale) == pytest.approx(float(ess(w)), rel=1e-10)


@given(st.floats(1e-300, 1e300), st.integers(1, 20))
def test_ess_is_n_for_constant_weights(value, n):
    assert ess(torch.full((n,), value, dtype=torch.float64)) == n


@given(positive)
def test_ess_is_below_n_when_weights_differ(weights):
    w = f64([*weights, 2.0 * max(weights)])
    assert ess(w) < len(w) - 1e-3


@given(positive, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_ess_of_capped_weights_never_rises_with_the_cap(weights, cap, other):
    low, high = sorted((cap, other))
    w = f64(weights)
    assert ess(w.clamp(max=high)) <= ess(w.clamp(max=low)) * (1 + 1e-12)


def test_masking_has_no_such_order():
    w = f64([1.0, 1.0, 3.0, 20.0])
    by_cap = [float(ess(torch.where(w <= cap, w, 0.0))) for cap in (1.0, 3.0, 20.0)]
    assert by_cap[0] < by_cap[1] > by_cap[2]


def test_extreme_weights_have_defined_answers():
    assert ess(f64([1e300, 1e300, 0.0])) == 2.0
    assert ess(f64([5e-324, 5e-324])) == 2.0
    assert ess(f64([0.0, 0.0])) == 0.0
    assert ess(f64([])) == 0.0
    assert ess(f64([math.inf, 1.0, 1.0])) == 1.0
    assert ess(f64([math.inf, math.inf])) == 1.0  # sizes lost: only the lower bound is certain
    assert mean_weight(f64([1.7e308, 1.7e308])) == 1.7e308
    assert mean_weight(f64([math.inf, 1.0])) == math.inf
    assert second_moment(f64([1e300])) == math.inf
    assert renyi2(f64([1e300])) == pytest.approx(600 * math.log(10), rel=1e-12)
    assert renyi2(f64([math.inf])) == math.inf
    assert renyi2(f64([0.0])) == -math.inf
    assert chi2(f64([0.0])) == -1.0
    assert chi2(f64([0.0]), normalized=True) == math.inf
    assert chi2(f64([math.inf, 1.0]), normalized=True) == 1.0
    assert chi2(f64([1e300, 0.0]), normalized=True) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("statistic", ALL)
def test_an_all_masked_batch_counts_nothing(statistic):
    value = statistic(f64([[math.nan, 7.0]]), torch.zeros(1, 2, dtype=torch.bool))
    assert (float(value), value.n) == (0.0, 0)


@pytest.mark.parametrize("statistic", ALL)
@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_poison_in_padding_changes_no_bit(statistic, poison, dtype):
    real = torch.tensor([0.5, 1.25, 3.0], dtype=dtype)
    padded = torch.cat([real, torch.tensor([poison, poison], dtype=dtype)])
    mask = torch.tensor([True, True, True, False, False])
    assert float(statistic(padded, mask)) == float(statistic(real))
    assert statistic(padded, mask).n == 3


@pytest.mark.parametrize("statistic", [s for s in ALL if s is not ess])
def test_points_of_probability_zero_never_count(statistic):
    w, law = f64([0.5, 1.5, math.nan]), f64([0.5, 0.5, 0.0])
    assert float(statistic(w, probs=law)) == float(statistic(w[:2], probs=law[:2]))


@pytest.mark.parametrize("statistic", ALL)
def test_bad_weights_are_refused_by_name(statistic):
    with pytest.raises(InputError, match="must not be NaN on a real entry; found 1 NaN, first at real entry 1"):
        statistic(f64([1.0, math.nan]))
    with pytest.raises(InputError, match=r"must be >= 0; found -0\.5"):
        statistic(f64([1.0, -0.5]))
    with pytest.raises(InputError, match="`which` must be one of"):
        statistic(f64([1.0]), which="clipped")
    with pytest.raises(InputError, match="`mask` must have the shape of the weights"):
        statistic(f64([1.0, 2.0]), torch.tensor([True]))


def test_probabilities_must_be_a_law():
    for law in ([0.5, 0.4], [1.5, -0.5], [math.nan, 1.0]):
        with pytest.raises(InputError, match="`probs` must be a probability law"):
            mean_weight(f64([1.0, 1.0]), probs=f64(law))
    with pytest.raises(InputError, match="go together"):
        ess(f64([1.0]), probs=f64([1.0]))
    with pytest.raises(InputError, match="go together"):
        ess(f64([1.0]), n=3)


def law_of(behavior, target):
    return f64([t / b for t, b in zip(target, behavior, strict=True)]), f64(behavior)


def test_exact_law_of_two_points():
    w, law = law_of((0.7, 0.3), (0.6, 0.4))
    assert chi2(w, probs=law) == pytest.approx(1 / 21, rel=1e-12)
    assert second_moment(w, probs=law) == pytest.approx(22 / 21, rel=1e-12)
    assert renyi2(w, probs=law) == pytest.approx(math.log(22 / 21), rel=1e-12)
    assert mean_weight(w, probs=law) == pytest.approx(1.0, rel=1e-14)
    assert ess(w, probs=law, n=1000) == pytest.approx(1000 * 21 / 22, rel=1e-12)


@given(st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)), min_size=2, max_size=5))
def test_n_over_d2_when_the_behavior_covers_the_target(pairs):
    behavior, target = ([x / sum(column) for x in column] for column in zip(*pairs, strict=True))
    w, law = law_of(behavior, target)
    d2 = sum(t * t / b for t, b in zip(target, behavior, strict=True))
    assert ess(w, probs=law, n=64) == pytest.approx(64 / d2, rel=1e-10)
    assert chi2(w, probs=law) == pytest.approx(d2 - 1, rel=1e-10, abs=1e-14)
    assert chi2(w, probs=law, normalized=True) == pytest.approx(d2 - 1, rel=1e-10, abs=1e-14)


def test_kish_of_a_sample_tends_to_n_over_d2_by_enumerating_all_samples():
    w, _ = law_of((0.5, 0.5), (0.75, 0.25))
    gaps = []
    for n in (2, 6, 12):
        mean = 0.0
        for draw in itertools.product((0, 1), repeat=n):
            mean += 0.5**n * ess(w[list(draw)]) / n
        gaps.append(abs(mean - 0.8))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.02


def test_small_divergences_keep_their_digits():
    epsilon = 1e-7
    w, law = f64([1 + epsilon, 1 - epsilon]), f64([0.5, 0.5])
    assert chi2(w, probs=law) == pytest.approx(1e-14, rel=1e-6)
    assert renyi2(w, probs=law) == pytest.approx(1e-14, rel=1e-6)
    assert chi2(w, probs=law, normalized=True) == pytest.approx(1e-14, rel=1e-6)


def test_the_two_chi2_differ_exactly_when_the_mean_is_not_one():
    w = f64([1.0, 2.0, 3.0])
    assert (chi2(w), chi2(w, normalized=True)) == (pytest.approx(14 / 3 - 1), pytest.approx(14 / 12 - 1))
    assert chi2(w, normalized=True) == pytest.approx(3 / ess(w) - 1, rel=1e-12)
    assert chi2(w, normalized=True).name != chi2(w).name


def test_empty_rows_change_no_statistic():
    w = f64([[1.5, 0.5], [2.0, 0.2]])
    longer, mask = torch.cat([w, f64([[math.nan, 1e30]])]), torch.tensor([[True, True], [True, True], [False, False]])
    for statistic in ALL:
        assert float(statistic(longer, mask)) == float(statistic(w))


def test_the_number_says_what_it_is_and_survives_copies_and_json():
    value = ess(f64([1.0, 1.0, 0.0]), which="applied")
    assert repr(value) == "ess(applied weights, n=3) = 2"
    assert json.loads(json.dumps({"ess": value})) == {"ess": 2.0}
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert isinstance(twin, WeightStatistic)
        assert (float(twin), twin.name, twin.which, twin.n) == (2.0, "ess", "applied", 3)


def test_gradients_do_not_flow_through_a_diagnostic():
    assert isinstance(ess(torch.ones(3, requires_grad=True)), float)


@pytest.mark.usefixtures("untyped")
def test_an_integer_mask_is_not_read_as_positions():
    with pytest.raises(InputError, match=r"`mask` must be boolean; found torch\.int64"):
        ess(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 1]))
