"""L5: a probability rounds to 1, and the token drops out.

Log-odds displacements were finite for only 96.3 % (dense) and 99.5 % (mixture of experts) of tokens in the paper whose rule
rests on them. At log p = -1e-9 in float32, log(p / (1 - p)) is infinite; the stable form gives 20.7233.
AReaL's binary divergence keeps probabilities in [1e-8, 1 - 1e-8] in float32, where 1 - 1e-8 is 1: for p = q = 1 it is NaN, and
KPop's `NaN <= phi` masks the tokens on which both engines agree perfectly.
"""

import math

import pytest
import torch

from testbed.core.numerics import log1m_exp
from testbed.weighting.binary_divergence import binary_kl
from testbed.weighting.confidence import displacement
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


def clamped_divergence(p, q):
    """KL of two coins whose probabilities are kept 1e-8 away from 0 and 1, in the dtype they come in."""
    a, b = p.clamp(1e-8, 1 - 1e-8), q.clamp(1e-8, 1 - 1e-8)
    return a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()


def test_wrong_recipe_masks_agreement():
    p, q = torch.tensor([1.0, 0.9]), torch.tensor([1.0, 1.0])
    single = clamped_divergence(p, q)
    assert single[0].isnan() and single[1].isinf() and not (single <= 2.0).any()
    assert clamped_divergence(p.double(), q.double()).tolist() == pytest.approx([0.0, 1.52], abs=5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ours_keeps_agreement_in_either_precision(dtype):
    target, behavior = torch.tensor([[1.0, 0.9]], dtype=dtype).log(), torch.tensor([[1.0, 1.0]], dtype=dtype).log()
    assert binary_kl(target, behavior)[0].tolist() == pytest.approx([0.0, 1.52], abs=5e-3)
    assert weights("kpop", batch_of(target, behavior, dtype=dtype)).gate.all()
    assert displacement(target, behavior)[0].tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_displacement_of_a_confident_token_is_stable(dtype):
    sure = torch.tensor([-1e-9, -1e-12, -1e-30], dtype=dtype)
    shift = displacement(sure, 2 * sure)
    torch.testing.assert_close(shift, torch.full_like(sure, math.log(2.0)), rtol=1e-6, atol=0)


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
