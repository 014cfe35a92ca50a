"""L5: a probability rounds to 1, and the token drops out.

Log-odds displacements were finite for only 96.3 % (dense) and 99.5 % (mixture of experts) of tokens in the paper whose rule
rests on them. At log p = -1e-9 in float32, log(p / (1 - p)) is infinite; the stable form gives 20.7233.
"""

import pytest
import torch

from testbed.core.numerics import log1m_exp
from tests.museum.specimens import REDUCTIONS, loss_and_gradient, weights
from tests.weighting.worlds import PAIRS, batch_of

SURE = [[-1e-9, -1e-12, -1e-30, -1e-45, 0.0]]


def test_wrong_recipe_rounds_first():
    p = torch.tensor(-1e-9).exp()
    assert p == 1.0 and torch.log(p / (1 - p)).isinf()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ours_is_stable(dtype):
    logp = torch.tensor(-1e-9, dtype=dtype)
    assert float(logp - log1m_exp(logp)) == pytest.approx(20.7233, abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_odds_are_finite_and_decreasing_at_both_ends(dtype):
    logp = -torch.logspace(-30, 1.5, 200, dtype=torch.float64).to(dtype)
    odds = logp - log1m_exp(logp)
    assert odds.isfinite().all() and (odds.diff() < 0).all()
    exact = torch.log(torch.expm1(-logp.double()))  # log (1 - p) / p, by another route
    torch.testing.assert_close(odds.double(), -exact, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_drops_a_confident_token(rule, granularity, dtype):
    batch = batch_of(SURE, SURE, dtype=dtype)
    w = weights(rule, batch, granularity)
    assert w.gate.all() and (w.value > 0).all() and w.value.isfinite().all()
    apart = batch_of(SURE, [[-1e-12, -1e-9, 0.0, -1e-30, -1e-45]], dtype=dtype)
    assert (weights(rule, apart, granularity).value > 0).all()
    for reduction in REDUCTIONS:
        _, gradient = loss_and_gradient(batch, rule, granularity, reduction)
        assert gradient.isfinite().all() and (gradient != 0).all()
