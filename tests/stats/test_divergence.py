"""Estimates of the divergence: exact under enumeration, in the right direction, never negative, finite, and padded safely."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.stats.divergence import kl, kl_bounded, kl_k1, kl_k2, kl_k3, kl_straight_through

FORWARD, REVERSE = "behavior_to_target", "target_to_behavior"
TOKENWISE = (kl_k1, kl_k2, kl_k3)
MU, PI = (0.7, 0.3), (0.6, 0.4)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def log_ratio_of(mu, pi):
    return f64([math.log(p) - math.log(q) for p, q in zip(pi, mu, strict=True)])


def exact_kl(first, second):
    return math.fsum(a * math.log(a / b) for a, b in zip(first, second, strict=True))


def test_two_letters_both_directions_by_enumeration():
    d, law = log_ratio_of(MU, PI), f64(MU)
    assert exact_kl(MU, PI) == pytest.approx(0.0216009, abs=5e-8)
    assert exact_kl(PI, MU) == pytest.approx(0.0225824, abs=5e-8)
    for estimator in ("k1", "k3"):
        assert float(kl(d, estimator=estimator, probs=law)) == pytest.approx(exact_kl(MU, PI), rel=1e-10)
        reverse = kl(d, estimator=estimator, direction=REVERSE, probs=law)
        assert float(reverse) == pytest.approx(exact_kl(PI, MU), rel=1e-10)
    assert float(kl(d, estimator="k2", probs=law)) == pytest.approx(0.0207310, abs=5e-8)


def test_usual_mistakes_give_other_numbers():
    d, law = log_ratio_of(MU, PI), f64(MU)
    assert float(kl(-d, estimator="k1", probs=law)) == pytest.approx(-0.0216009, abs=5e-8)
    assert float(kl(-d, estimator="k3", probs=law)) == pytest.approx(0.0200658, abs=5e-8)


laws = st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), min_size=2, max_size=5)


@given(laws)
def test_k1_and_k3_are_exact_in_both_directions(pairs):
    mu, pi = ([x / sum(column) for x in column] for column in zip(*pairs, strict=True))
    d, law = log_ratio_of(mu, pi), f64(mu)
    for estimator in ("k1", "k3"):
        for direction, expected in ((FORWARD, exact_kl(mu, pi)), (REVERSE, exact_kl(pi, mu))):
            value = float(kl(d, estimator=estimator, direction=direction, probs=law / law.sum()))
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_sampling_from_the_target_is_the_exchange_of_roles():
    d = log_ratio_of(MU, PI)
    assert float(kl(-d, probs=f64(PI))) == pytest.approx(exact_kl(PI, MU), rel=1e-10)
    assert float(kl(-d, direction=REVERSE, probs=f64(PI))) == pytest.approx(exact_kl(MU, PI), rel=1e-10)


@given(st.floats(1e-12, 1.0), st.sampled_from([1.0, -1.0]), st.sampled_from([torch.float32, torch.float64]))
def test_k3_is_never_negative_and_keeps_its_digits(size, sign, dtype):
    d = torch.tensor(sign * size, dtype=dtype)
    x = Fraction(float(d))
    term, forward = x * x / 2, Fraction(0)
    for k in range(3, 40):
        forward += term
        term *= x / k
    reverse = sum(x**j / math.factorial(j) * (j - 1) for j in range(2, 40))  # r d - (r - 1), term by term
    assert float(kl_k3(d)) == pytest.approx(float(forward), rel=1e-11)
    assert float(kl_k3(d, direction=REVERSE)) == pytest.approx(float(reverse), rel=1e-11)
    assert float(kl_k3(d)) >= 0.0
    assert float(kl_k3(d, direction=REVERSE)) >= 0.0


def test_naive_k3_in_float32_is_negative_where_ours_is_right():
    d = torch.tensor(1e-6)
    assert float(d.exp() - 1 - d) < 0.0
    assert float(kl_k3(d)) == pytest.approx(5e-13, rel=1e-4)


@pytest.mark.parametrize("direction", [FORWARD, REVERSE])
def test_extreme_ratios_give_no_nan_in_value_or_gradient(direction):
    for estimate in TOKENWISE:
        d = f64([1e4, -1e4, -800.0, 0.0, 1e-200]).requires_grad_()
        value = estimate(d, direction=direction)
        assert not bool(value.isnan().any())
        value.sum().backward()
        assert not bool(d.grad.isnan().any())


def test_a_token_the_target_never_emits():
    d = f64([-math.inf, 0.0]).requires_grad_()
    assert [k(d)[0].item() for k in TOKENWISE] == [math.inf] * 3
    assert [k(d, direction=REVERSE)[0].item() for k in TOKENWISE] == [0.0, 0.0, 1.0]
    for estimate in TOKENWISE:
        (gradient,) = torch.autograd.grad(estimate(d, direction=REVERSE).sum(), d)
        assert not bool(gradient.isnan().any())


@pytest.mark.parametrize("estimate", [*TOKENWISE, kl_straight_through])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
def test_poison_in_padding_reaches_neither_value_nor_gradient(estimate, poison):
    d = f64([0.3, poison]).requires_grad_()
    value = estimate(d, torch.tensor([True, False]))
    value.sum().backward()
    assert value[1].item() == 0.0
    assert value[0].item() == estimate(f64(0.3)).item()
    assert float(d.grad[1]) == 0.0
    assert math.isfinite(float(d.grad[0]))


def test_mean_is_over_real_tokens():
    d, mask = (
        f64([[-0.5, 0.25, math.nan], [1.0, math.nan, math.nan]]),
        torch.tensor([[True, True, False], [True, False, False]]),
    )
    assert float(kl(d, mask, estimator="k1")) == pytest.approx(-0.25, rel=1e-12)
    with_empty_row = torch.cat([d, f64([[9.0, 9.0, 9.0]])]), torch.cat([mask, torch.zeros(1, 3, dtype=torch.bool)])
    assert float(kl(*with_empty_row)) == float(kl(d, mask))
    assert float(kl(d, torch.zeros_like(mask))) == 0.0


def test_probability_zero_points_never_count():
    assert float(kl(f64([0.0, -math.inf]), probs=f64([1.0, 0.0]))) == 0.0


def test_bounds_hold_and_the_bounded_share_is_told():
    d = torch.tensor([49.0, -49.0, 0.1, 777.0], requires_grad=True)
    mask = torch.tensor([True, True, True, False])
    value, share = kl_bounded(d, mask)
    assert value.tolist() == [10.0, 10.0, pytest.approx(float(kl_k3(torch.tensor(0.1)))), 0.0]
    assert share == pytest.approx(2 / 3)
    value.sum().backward()
    assert d.grad.tolist() == [0.0, 0.0, pytest.approx(math.expm1(0.1), rel=1e-6), 0.0]


def test_an_output_bound_alone_counts_too():
    assert kl_bounded(f64([5.0, 0.0])).share_bounded == 0.5
    assert kl_bounded(f64([5.0, 0.0]), output_bound=1e6).share_bounded == 0.0
    assert kl_bounded(f64([-15.0]), estimator="k1").value.tolist() == [10.0]
    assert kl_bounded(f64([0.0]), torch.tensor([False])).share_bounded == 0.0


def test_gradient_table_of_the_estimates():
    """Bernoulli(sigmoid(theta)) at 0.6 against a fixed 0.5: only k2 has the gradient of KL(policy || reference)."""
    theta = f64(0.6).logit().requires_grad_()
    log_policy = torch.stack([torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta)])
    law = log_policy.exp().detach()

    def gradient(value):
        return float(torch.autograd.grad((law * value).sum(), theta, retain_graph=True)[0])

    d = math.log(0.5) - log_policy
    exact = (log_policy.exp() * -d).sum()
    (true,) = torch.autograd.grad(exact, theta, retain_graph=True)
    assert float(true) == pytest.approx(0.0973116, abs=5e-8)
    assert gradient(kl_k1(d)) == pytest.approx(0.0, abs=1e-15)
    assert gradient(kl_k2(d)) == pytest.approx(float(true), rel=1e-10)
    assert gradient(kl_k3(d)) == pytest.approx(0.1, rel=1e-10)
    assert gradient(kl_straight_through(d)) == pytest.approx(float(true), rel=1e-10)
    torch.testing.assert_close(kl_straight_through(d), kl_k3(d), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("direction", [FORWARD, REVERSE])
@pytest.mark.parametrize("estimate", TOKENWISE)
def test_gradcheck_on_both_branches(estimate, direction):
    d = f64([-3.0, -1.0 + 1e-3, -0.5, -5e-3, 4e-3, 0.2, 2.0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: estimate(x, direction=direction), d)


def test_bad_input_is_refused_by_name():
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError, match="`log_ratio` must be neither NaN nor"):
            kl_k1(f64([0.0, bad]))
    with pytest.raises(InputError, match="`direction` must be one of"):
        kl_k3(f64([0.0]), direction="forward")
    with pytest.raises(InputError, match="`estimator` must be one of"):
        kl(f64([0.0]), estimator="k4")
    with pytest.raises(InputError, match="`mask` must have the shape"):
        kl_k2(f64([0.0, 0.0]), torch.tensor([True]))
    with pytest.raises(InputError, match="`input_bound` must be > 0"):
        kl_bounded(f64([0.0]), input_bound=0.0)
