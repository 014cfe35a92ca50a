"""Moments of one ratio and tilted averages: hand numbers, lost support, and the refusals."""

import math

import pytest
import torch

from testbed.core.errors import InputError
from testbed.exact.ratio_moments import powered_measure, ratio_moment, tilted_mean

PI, MU = (torch.tensor(p, dtype=torch.float64).log() for p in ([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]))


@pytest.mark.parametrize(
    ("power", "value"),
    [(2.0, 0.36 / 0.2 + 0.3 + 0.01 / 0.5), (1.0, 1.0), (0.5, math.sqrt(0.12) + 0.3 + math.sqrt(0.05))],
)
def test_powers_by_hand(power, value):
    assert float(ratio_moment(PI, MU, power)) == pytest.approx(value, rel=1e-14)
    assert powered_measure(PI, MU, power).shape == (3,)


def test_laws_broadcast_over_leading_dimensions():
    stacked = ratio_moment(torch.stack([PI, MU]), MU)
    torch.testing.assert_close(
        stacked, torch.stack([ratio_moment(PI, MU), torch.ones(()).double()]), rtol=1e-14, atol=0
    )


def test_words_the_behavior_cannot_draw_are_left_out():
    pi, mu = torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]).log()
    assert [float(ratio_moment(pi, mu, power)) for power in (0.5, 1, 2)] == pytest.approx([0.5**0.5, 0.5, 0.25])
    assert float(ratio_moment(mu, pi)) == pytest.approx(2.0)


def test_huge_ratios_overflow_to_infinity_and_not_to_nan():
    pi, mu = (torch.log_softmax(torch.tensor(x).double(), -1) for x in ([0.0, -800.0], [-800.0, 0.0]))
    assert float(ratio_moment(pi, mu)) == math.inf
    assert float(ratio_moment(pi, mu, 1.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("power", [0.0, -1.0, float("nan")])
def test_powers_that_are_refused(power):
    with pytest.raises(InputError, match="`power` must be > 0"):
        ratio_moment(PI, MU, power)


def test_nan_is_refused():
    with pytest.raises(InputError, match="must not hold NaN"):
        ratio_moment(PI, torch.full((3,), float("nan")))


def test_tilting_by_exact_weights_once_gives_the_target_and_twice_the_second_moment():
    values = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    assert float(tilted_mean(values, MU, PI - MU, 1.0)) == pytest.approx(float((PI.exp() * values).sum()))
    squared = powered_measure(PI, MU, 2.0)
    assert float(tilted_mean(values, MU, PI - MU)) == pytest.approx(float((squared * values).sum() / squared.sum()))
    assert float(tilted_mean(values, MU - 7.0, PI - MU + 400.0)) == pytest.approx(
        float(tilted_mean(values, MU, PI - MU))
    )


def test_columns_are_tilted_one_by_one():
    weight = torch.stack([PI - MU, torch.zeros(3).double()], 1)
    values = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    expected = [tilted_mean(values[:, j], MU, weight[:, j]) for j in range(2)]
    torch.testing.assert_close(tilted_mean(values, MU, weight), torch.stack(expected), rtol=1e-14, atol=0)


def test_an_infinite_value_where_the_weight_is_zero_does_not_count():
    weight = torch.tensor([0.0, 0.0, float("-inf")], dtype=torch.float64)
    values = torch.tensor([1.0, 1.0, float("inf")], dtype=torch.float64)
    assert float(tilted_mean(values, MU, weight)) == pytest.approx(1.0)


def test_weights_that_are_zero_everywhere_have_no_tilted_law():
    with pytest.raises(InputError, match="not 0 everywhere"):
        tilted_mean(torch.ones(3), MU, torch.full((3,), float("-inf")))
