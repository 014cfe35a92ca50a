"""Weight families: closed forms against definitions evaluated elsewhere, limits, degenerate members, refusals."""

from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio

FAMILIES = [
    LogNormal(0.0), LogNormal(1e-6), LogNormal(0.5), LogNormal(2), LogNormal(30.0),
    TwoPoint(0.0, 2.0), TwoPoint(0.5, 4.5), TwoPoint(1, 1), TwoPoint(1.0, 7.0), TwoPoint(0.25, 1.0),
    UniformRatio(0.0), UniformRatio(1e-9), UniformRatio(0.7), UniformRatio(1),
    Finite([0.5, 1.0, 3.0], [0.5, 0.375, 0.125]), Finite([1.0], [1.0]), Finite([0.0, 4.0, 9.0], [0.75, 0.25, 0.0]),
]  # fmt: skip
CAPS = [0.0, 1e-8, 0.2, 0.5, 0.999, 1.0, 1.0 + 1e-9, 1.5, 2.0, 4.5, 100.0, 1e200, float("inf")]


def log_normal_reference(sigma, cap):
    """Return E min, B and E min^2 of a log-normal weight from complementary error functions with 60 digits."""
    with mpmath.workdps(60):
        s, c = mpmath.mpf(sigma), mpmath.mpf(cap)

        def above(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        z = mpmath.log(c) / s
        tail = above(z + s / 2)
        mean = above(s / 2 - z) + c * tail
        second = mpmath.exp(s * s) * above(3 * s / 2 - z) + c * c * tail
        return mean, above(z - s / 2) - c * tail, second


@given(st.floats(-8.0, 1.0), st.floats(-30.0, 30.0))
def test_log_normal_keeps_twelve_digits_from_the_bulk_to_the_far_tail(log10_sigma, z):
    sigma = 10.0**log10_sigma
    cap = float(mpmath.exp(sigma * z))
    w = LogNormal(sigma)
    got = (w.capped_mean(cap), w.excess(cap), w.capped_second_moment(cap))
    for ours, exact in zip(got, log_normal_reference(sigma, cap), strict=True):
        assert ours == pytest.approx(float(exact), rel=2e-12, abs=0.0)


@given(st.fractions(0, 1, max_denominator=40), st.fractions(0, 3, max_denominator=40))
def test_uniform_ratio_is_the_integral_of_its_polynomial(h, c):
    low, high = 1 - h, 1 + h
    if h == 0:
        mean, second = min(Fraction(1), c), min(Fraction(1), c) ** 2
    else:
        cut = min(max(c, low), high)
        mean = ((cut**2 - low**2) / 2 + min(c, high) * (high - cut)) / (2 * h)
        second = ((cut**3 - low**3) / 3 + c**2 * (high - cut)) / (2 * h)
    w = UniformRatio(float(h))
    assert w.capped_mean(float(c)) == pytest.approx(float(mean), rel=1e-13, abs=1e-15)
    assert w.excess(float(c)) == pytest.approx(float(1 - mean), rel=1e-12, abs=1e-15)
    assert w.capped_second_moment(float(c)) == pytest.approx(float(second), rel=1e-13, abs=1e-15)


@given(st.floats(0.0, 1.0), st.floats(1.0, 50.0), st.floats(0.0, 60.0))
def test_two_point_is_the_finite_law_of_its_points(low, high, cap):
    two = TwoPoint(low, high)
    if high - low < 1e-6:
        return
    law = Finite([low, high], [1.0 - two.probability, two.probability])
    assert two.second_moment == pytest.approx(law.second_moment, rel=1e-12)
    for name in ("capped_mean", "excess", "capped_second_moment"):
        assert getattr(two, name)(cap) == pytest.approx(getattr(law, name)(cap), rel=1e-12, abs=1e-12), name
    if abs(cap - low) > 1e-9 and abs(cap - high) > 1e-9:
        assert two.tail(cap) == pytest.approx(law.tail(cap), abs=1e-12)


@pytest.mark.parametrize("w", FAMILIES, ids=str)
def test_what_every_family_obeys(w):
    means = [w.capped_mean(c) for c in CAPS]
    assert means == sorted(means)
    for cap, mean in zip(CAPS, means, strict=True):
        assert mean + w.excess(cap) == pytest.approx(1.0, rel=1e-12)
        assert 0.0 <= mean <= min(1.0, cap) * (1 + 1e-12)
        assert mean**2 * (1 - 1e-12) <= w.capped_second_moment(cap) <= min(cap, w.second_moment) * (1 + 1e-12)
        assert 0.0 <= w.tail(cap) <= 1.0
        if cap >= w.supremum:
            assert (mean, w.excess(cap), w.tail(cap)) == (1.0, 0.0, 0.0)
            assert w.capped_second_moment(cap) == w.second_moment


@pytest.mark.parametrize("w", [LogNormal(0.8), TwoPoint(0.5, 4.5), UniformRatio(0.7), FAMILIES[-3]], ids=str)
def test_tail_is_the_slope(w):
    for cap in (0.6, 1.1, 1.6):  # no atom of a law lies within the step
        step = 1e-4
        slope = (w.capped_mean(cap + step) - w.capped_mean(cap - step)) / (2 * step)
        assert slope == pytest.approx(w.tail(cap), abs=1e-8)
        slope = (w.capped_second_moment(cap + step) - w.capped_second_moment(cap - step)) / (2 * step)
        assert slope == pytest.approx(2 * cap * w.tail(cap), abs=1e-8)


def test_nearly_constant_weights_keep_their_digits():
    assert UniformRatio(1e-12).excess(1.0) == pytest.approx(2.5e-13, rel=1e-12)
    assert LogNormal(1e-12).excess(1.0) == pytest.approx(1e-12 / (2 * torch.pi) ** 0.5, rel=1e-12)


def test_moments_beyond_float_are_infinite_and_their_capped_forms_are_not():
    wide = LogNormal(30.0)
    assert wide.second_moment == float("inf")
    assert wide.capped_second_moment(1e100) == pytest.approx(float(log_normal_reference(30.0, 1e100)[2]), rel=1e-12)


def test_finite_drops_points_of_probability_zero():
    assert Finite([0.0, 4.0, 9.0], [0.75, 0.25, 0.0]).supremum == 4.0
    assert Finite(torch.tensor([2.0, 0.0]), torch.tensor([0.5, 0.5])).second_moment == 2.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LogNormal(-0.1), "`sigma`"),
        (lambda: LogNormal(float("inf")), "`sigma` must be finite"),
        (lambda: TwoPoint(1.1, 2.0), "`low`"),
        (lambda: TwoPoint(0.5, 0.9), "`high`"),
        (lambda: TwoPoint(0.5, float("inf")), "`high` must be finite"),
        (lambda: UniformRatio(1.5), "`half_width`"),
        (lambda: Finite([1.0], [0.5, 0.5]), "one length"),
        (lambda: Finite([2.0, 0.5], [0.5, 0.5]), "mean of the weights must be 1; found 1.25"),
        (lambda: Finite([1.0, 1.0], [0.5, 0.6]), "total 1"),
        (lambda: Finite([-1.0, 3.0], [0.5, 0.5]), "finite and >= 0"),
        (lambda: LogNormal(1.0).excess(-1.0), "`cap`"),
        (lambda: LogNormal(1.0).capped_mean(float("nan")), "`cap` must be a number"),
    ],
)
def test_refusals_name_the_parameter(make, words):
    with pytest.raises(InputError, match=words):
        make()
