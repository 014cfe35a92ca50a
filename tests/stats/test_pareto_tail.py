"""Pareto k and smoothed weights: answers of two other programs, and the ties, caps and short samples that break them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.stats.pareto_fit import fit_generalized_pareto, generalized_pareto_quantile
from testbed.stats.pareto_tail import pareto_k, pareto_k_from_log, psis_smooth

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "pareto_k.json").read_text())["cases"]
PAIRS = [(name, program) for name in GOLDEN for program in GOLDEN[name]["answers"]]
NORMAL = "normal_100"


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def golden(name):
    return f64(GOLDEN[name]["log_weights"])


@pytest.mark.parametrize(("name", "program"), PAIRS)
def test_agrees_with_other_programs_at_their_tail_length(name, program):
    answer = GOLDEN[name]["answers"][program]
    smoothed = psis_smooth(golden(name), tail_length=answer["tail"])
    assert float(smoothed.k) == pytest.approx(answer["k"], abs=1e-3)
    tail = golden(name).argsort()[-answer["tail"] :]
    ours, theirs = smoothed.log_weights, f64(answer["log_weights"])
    torch.testing.assert_close(ours[tail].exp(), theirs[tail].exp(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", list(GOLDEN))
def test_default_tail_length_is_that_of_arviz_stats(name):
    answer = GOLDEN[name]["answers"]["arviz-stats"]
    smoothed = psis_smooth(golden(name))
    assert (smoothed.tail, float(smoothed.k)) == (answer["tail"], pytest.approx(answer["k"], abs=1e-9))
    assert float(pareto_k_from_log(golden(name))) == float(smoothed.k)


def test_the_sign_of_the_log_weights_matters():
    right, wrong = pareto_k_from_log(golden(NORMAL)), pareto_k_from_log(-golden(NORMAL))
    assert abs(right - wrong) > 0.05


def test_weights_are_smoothed_below_one_third_too():
    smoothed = psis_smooth(golden(NORMAL))
    assert smoothed.k < 1 / 3
    raw = golden(NORMAL) - golden(NORMAL).logsumexp(0)
    assert int((smoothed.log_weights - raw).abs().gt(1e-3).sum()) >= 10


def test_weights_and_log_weights_agree():
    log_w = golden("pareto_half_400")
    assert pareto_k(log_w.exp()) == pytest.approx(float(pareto_k_from_log(log_w)), rel=1e-10)


@given(st.floats(-300, 300))
def test_scale_changes_nothing(shift):
    assert pareto_k_from_log(golden(NORMAL) + shift) == pytest.approx(
        float(pareto_k_from_log(golden(NORMAL))), abs=1e-9
    )


def test_unnormalized_output_keeps_the_scale_and_the_largest_weight_bounds_it():
    log_w = golden("pareto_one_400") + 7.0
    scaled, plain = psis_smooth(log_w).log_weights, psis_smooth(log_w, normalize=False).log_weights
    assert float(plain.max()) <= float(log_w.max())
    body = log_w.argsort()[:-60]
    assert torch.equal(plain[body], log_w[body])
    torch.testing.assert_close(plain - plain.logsumexp(0), scaled, rtol=0.0, atol=1e-12)
    assert float(scaled.exp().sum()) == pytest.approx(1.0, rel=1e-12)


def test_order_of_the_weights_is_kept():
    log_w = golden("normal_1000")
    assert torch.equal(psis_smooth(log_w).log_weights.argsort(), log_w.argsort())


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
def test_padding_is_never_counted(poison):
    log_w = golden(NORMAL)
    padded = torch.cat([log_w, torch.full((40,), poison, dtype=torch.float64)]).reshape(10, 14)
    mask = (torch.arange(140) < 100).reshape(10, 14)
    smoothed = psis_smooth(padded, mask)
    assert float(smoothed.k) == float(pareto_k_from_log(log_w))
    assert torch.equal(smoothed.log_weights[mask], psis_smooth(log_w).log_weights)
    assert bool((smoothed.log_weights[~mask] == -math.inf).all())


NOT_CERTIFIED = {
    "99 zeros and one 5": [0.0] * 99 + [5.0],
    "no positive weight": [0.0] * 100,
    "an infinite weight": [1.0 + i for i in range(99)] + [math.inf],
    "too few": [float(i) for i in range(24)],
    "none": [],
    "ties above the cutoff": [1.0] * 95 + [2.0] * 5,
    "four above the cutoff": [1.0] * 96 + [2.0, 3.0, 4.0, 5.0],
}
POINT_MASS = {
    "constant": [3.0] * 100,
    "one weight": [3.0],
    "two equal weights": [3.0] * 2,
    "tail at the cap": [i / 80 for i in range(80)] + [2.0] * 20,
    "most at the cap": [0.5] * 20 + [2.0] * 80,
}


@pytest.mark.parametrize("case", NOT_CERTIFIED)
def test_tails_without_a_shape_are_not_certified(case):
    weights = f64(NOT_CERTIFIED[case])
    assert pareto_k(weights) == math.inf
    smoothed = psis_smooth(weights.log(), normalize=False)
    assert torch.equal(smoothed.log_weights, weights.log())
    assert smoothed.tail == 0


@pytest.mark.parametrize("case", POINT_MASS)
def test_a_tail_that_is_a_point_mass_is_the_lightest_there_is(case):
    weights = f64(POINT_MASS[case])
    assert pareto_k(weights, which="applied") == -math.inf
    torch.testing.assert_close(
        psis_smooth(weights.log()).log_weights.exp(), weights / weights.sum(), rtol=1e-12, atol=0.0
    )


def test_capped_normal_log_weights_are_a_point_mass_only_once_the_cap_covers_the_tail():
    log_w = golden("normal_1000")
    assert pareto_k_from_log(log_w.clamp(max=float(log_w.sort().values[-120]))) == -math.inf
    assert math.isfinite(pareto_k_from_log(log_w.clamp(max=float(log_w.sort().values[-20]))))


def test_normalized_weights_stay_defined_at_infinity():
    shares = psis_smooth(f64([math.inf, math.inf, 0.0])).log_weights.exp()
    assert shares.tolist() == [0.5, 0.5, 0.0]
    assert psis_smooth(f64([-math.inf] * 3)).log_weights.tolist() == [-math.inf] * 3
    assert psis_smooth(f64([])).log_weights.shape == (0,)


@given(
    st.lists(
        st.sampled_from([-math.inf, math.inf, -800.0, -1e-300, 0.0, 1e-9, 1.0, 1.0 + 1e-15, 700.0, 1e4]), max_size=60
    )
)
def test_never_nan(values):
    smoothed = psis_smooth(f64(values))
    assert not math.isnan(smoothed.k)
    assert not bool(smoothed.log_weights.isnan().any())


@given(st.lists(st.floats(-1e4, 1e4), min_size=25, max_size=60))
def test_never_nan_on_continuous_weights(values):
    smoothed = psis_smooth(f64(values), normalize=False)
    assert not math.isnan(smoothed.k)
    assert bool((smoothed.log_weights <= max(values)).all())


@pytest.mark.parametrize("k", [-0.4, 0.0, 0.3, 0.7, 1.2])
def test_fit_recovers_the_law_from_its_own_quantiles(k):
    levels = (np.arange(20000) + 0.5) / 20000
    shape, scale = fit_generalized_pareto(generalized_pareto_quantile(levels, k, 2.5))
    assert (shape, scale) == (pytest.approx(k, abs=0.01), pytest.approx(2.5, rel=0.01))


def test_fit_of_few_values_is_shrunk_as_if_ten_more_said_one_half():
    excess = generalized_pareto_quantile((np.arange(10) + 0.5) / 10, -0.5, 1.0)
    shape, _ = fit_generalized_pareto(excess)
    twice, _ = fit_generalized_pareto(excess * 2.0)
    assert shape == pytest.approx(twice, abs=1e-12)
    assert -0.5 < shape < 0.5


def test_quantiles_follow_scipy():
    from scipy.stats import genpareto

    levels = np.linspace(0.01, 0.99, 9)
    for k in (-0.5, 0.0, 0.8):
        np.testing.assert_allclose(
            generalized_pareto_quantile(levels, k, 3.0), genpareto.ppf(levels, k, scale=3.0), rtol=1e-10
        )


@pytest.mark.parametrize("length", [0, 100, -1])
def test_tail_length_is_checked(length):
    with pytest.raises(InputError, match="`tail_length` must be in"):
        pareto_k_from_log(golden(NORMAL), tail_length=length)


def test_nan_is_refused():
    with pytest.raises(InputError, match="NaN"):
        pareto_k(f64([1.0, math.nan]))
