"""The error of the mixture is the parabola it is said to be, by enumerating batches; its vertex is the coefficient."""

import numpy as np
import pytest
import torch

from testbed import (
    PrefixTree,
    TabularPolicy,
    batch_statistic,
    enumerate_law,
    exact_gradient,
    gradient_terms,
    moments,
    weigh,
)
from testbed.core.errors import InputError
from testbed.estimators.interpolation import optimal_interpolation
from testbed.weighting.adaptive import ais_alpha

ALPHAS = (0.0, 0.2, 0.5, 0.9, 1.0)


def world(seed=0, scale=0.8):
    """Return (law, uncorrected terms, corrected terms, gradient) of two-token responses to a stale behavior."""
    env = PrefixTree.random(2, 2, seed)
    pi, mu = (TabularPolicy.random(2, 2, 2 * seed + i, scale) for i in (5, 6))
    law = enumerate_law(env, pi, mu)
    g0, g1 = (gradient_terms(law.batch, weigh(rule, law.batch), pi) for rule in ("none", "sequence_product"))
    return law, g0, g1, exact_gradient(env, pi), pi


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_error_of_every_mixture_of_batch_means(seed, n):
    law, g0, g1, gradient, _ = world(seed)
    best = optimal_interpolation(g0, g1, n, law.probs)
    for alpha in ALPHAS:
        mixed = (1 - alpha) * g0 + alpha * g1
        error = batch_statistic(law, n, lambda rows, g=mixed: (g[rows].mean(1) - gradient).square().flatten(1).sum(1))
        assert best.mse(alpha) == pytest.approx(float(error.mean), rel=1e-11)
    assert best.mse(best.alpha) <= min(best.mse(a) for a in np.linspace(0, 1, 101)) + 1e-15


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_rule_with_this_coefficient_is_the_mixture(seed):
    law, g0, g1, _, pi = world(seed)
    w = weigh("ais", law.batch, granularity="sequence_product", alpha=0.35)
    torch.testing.assert_close(gradient_terms(law.batch, w, pi), 0.65 * g0 + 0.35 * g1, rtol=1e-11, atol=1e-14)


def test_the_coefficient_tends_to_one_with_the_batch():
    law, g0, g1, _, _ = world()
    path = [optimal_interpolation(g0, g1, n, law.probs).alpha for n in (1, 4, 16, 256, 10**6)]
    assert path == sorted(path) and path[0] < 0.9 and path[-1] > 0.999
    middle = optimal_interpolation(g0, g1, 4, law.probs)
    assert 0 < middle.alpha < 1
    assert middle.mse(middle.alpha) < min(middle.mse(0.0), middle.mse(1.0))
    vertex = (middle.bias2 - middle.covariance) / (middle.bias2 + middle.spread)
    assert middle.alpha == pytest.approx(vertex, rel=1e-12)


def test_the_diagnosed_coefficient_is_another_number():
    """What `ais` reads off the weights knows no gradient: it does not move when the batch grows, the optimum does."""
    law, g0, g1, _, _ = world()
    diagnosed = ais_alpha(law.batch, "sequence_product")
    optima = [optimal_interpolation(g0, g1, n, law.probs).alpha for n in (1, 1000)]
    assert optima[1] - optima[0] > 0.1
    assert min(abs(diagnosed - a) for a in optima) > 1e-3


def test_it_stays_between_the_ends():
    g0, far = torch.tensor([1.0, -1.0]), torch.tensor([10.0, -10.0])
    half = torch.tensor([0.5, 0.5])
    assert optimal_interpolation(g0, far, 1, half).alpha == 0.0  # the correction only adds variance
    assert optimal_interpolation(far, g0, 1, half).alpha == 1.0  # it removes some
    assert optimal_interpolation(g0, g0, 1, half).alpha == 1.0


def test_from_a_sample_moments_are_estimated_without_bias():
    """Averaged over every sample of two, the pieces are those of the law; noise is taken out of the squared bias."""
    law, g0, g1, _, _ = world()
    exact = optimal_interpolation(g0, g1, 2, law.probs)
    pieces = {"variance": exact.variance, "covariance": exact.covariance, "spread": exact.spread}
    for name, value in pieces.items():

        def piece(rows, name=name):
            return torch.tensor([getattr(optimal_interpolation(g0[r], g1[r]), name) for r in rows], dtype=torch.float64)

        assert float(batch_statistic(law, 2, piece).mean) == pytest.approx(value, rel=1e-11)
    rows = [0, 3, 3, 1, 2]
    found = optimal_interpolation(g0[rows], g1[rows])
    step = (g1 - g0)[rows].flatten(1).numpy()
    noise = step.var(0, ddof=1).sum() / 5
    assert found.spread == pytest.approx(noise, rel=1e-12)
    assert found.bias2 == pytest.approx(max((step.mean(0) ** 2).sum() - noise, 0.0), rel=1e-10)
    assert optimal_interpolation(g0[rows], g1[rows], n=50).bias2 == pytest.approx(found.bias2, rel=1e-12)
    assert optimal_interpolation(g0[rows], g1[rows], n=50).spread == pytest.approx(noise / 10, rel=1e-12)


def test_refusals(untyped):
    one = torch.ones(3)
    for call, message in [
        (lambda: optimal_interpolation(one, torch.ones(2)), "`corrected` must have shape"),
        (lambda: optimal_interpolation(one[:1], one[:1]), "at least two responses; found 1"),
        (lambda: optimal_interpolation(one, one, n=0.5), "`n` must be >= 1"),
        (lambda: optimal_interpolation(one, one, probs=torch.ones(3)), "sum to 1; found sum 3"),
        (lambda: optimal_interpolation(one, one, probs=torch.ones(2) / 2), "one probability per response"),
    ]:
        with pytest.raises(InputError, match=message):
            call()


def test_moments_of_the_mixture_agree(seed):
    law, g0, g1, _, _ = world(1)
    best = optimal_interpolation(g0, g1, 1, law.probs)
    mixed = (1 - best.alpha) * g0 + best.alpha * g1
    m = moments(law, mixed)
    gap = m.mean - moments(law, g1).mean
    assert best.mse(best.alpha) == pytest.approx(float(m.variance.sum() + gap.square().sum()), rel=1e-11)
