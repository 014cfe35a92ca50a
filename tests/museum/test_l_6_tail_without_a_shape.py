"""L6: 99 zeros and one 5 pass for a light tail.

arviz-stats 0.8 reports k = .167 and NaN weights, arviz 0.23 k = inf and raw weights; one wants minus log-weights, the other
plus. A fit that found nothing is not a fit of shape 0: shrunk towards 1/2 by 10 pseudo-observations it looks like 1/6.
"""

import math

import pytest
import torch

from testbed.stats.pareto_tail import pareto_k, pareto_k_from_log, psis_smooth
from testbed.stats.weight_statistics import ess

USABLE = 0.7


def one_of(n, others=0.0, large=5.0):
    weights = torch.full((n,), others, dtype=torch.float64)
    weights[n // 2] = large
    return weights


def test_wrong_recipe_shrinks_a_fit_that_failed():
    tail, shape_that_was_never_fitted = 20, 0.0
    k = (tail * shape_that_was_never_fitted + 10 * 0.5) / (tail + 10)
    assert k == pytest.approx(0.167, abs=5e-4) and k < USABLE


def test_ours_does_not_certify_it():
    assert pareto_k(one_of(100)) == math.inf
    smoothed = psis_smooth(one_of(100).log())
    assert smoothed.k == math.inf and not smoothed.log_weights.isnan().any()
    assert smoothed.log_weights.exp().tolist() == one_of(100, large=1.0).tolist()
    assert float(ess(one_of(100))) == pytest.approx(1.0)  # what there is to know about it


def test_ours_takes_plus_log_weights():
    w = torch.linspace(0.05, 0.95, 400, dtype=torch.float64) ** -0.5
    assert float(pareto_k_from_log(w.log())) == pytest.approx(float(pareto_k(w)), rel=1e-9)
    assert float(pareto_k_from_log(-w.log())) != pytest.approx(float(pareto_k(w)), abs=0.1)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("n", [1, 2, 24, 25, 100, 226, 5000])
@pytest.mark.parametrize("large", [1, 2, 4])
def test_no_tail_of_a_few_values_is_certified(n, large, scale):
    weights = torch.zeros(n, dtype=torch.float64)
    weights[:large] = 5.0 * scale
    k = pareto_k(weights)
    assert k == (-math.inf if n <= large else math.inf)
    smooth = psis_smooth(weights.log(), normalize=False).log_weights
    torch.testing.assert_close(smooth.exp(), weights, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weights", [torch.zeros(100), torch.tensor([math.inf] + [1.0] * 99), torch.zeros(0)])
def test_degenerate_samples_are_never_nan(weights):
    assert pareto_k(weights) == math.inf
    assert not psis_smooth(weights.double().log()).log_weights.isnan().any()


def test_a_real_light_tail_is_certified():
    u = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    assert float(pareto_k((1 - u) ** -0.2)) < 0.5 < USABLE < float(pareto_k((1 - u) ** -1.0))
