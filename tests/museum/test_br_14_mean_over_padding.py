"""BR-14: the mean is taken over padding, the variance over real tokens.

https://github.com/NovaSky-AI/SkyRL/issues/1305: advantages are whitened with moments of two different populations, and
come out with a mean of .044 instead of 0.
"""

import pytest
import torch

from testbed.core.numerics import masked_mean, masked_sum
from testbed.stats.divergence import kl
from testbed.stats.pareto_tail import pareto_k
from testbed.stats.weight_statistics import chi2, ess, mean_weight, renyi2, second_moment

ADVANTAGE = torch.tensor([[3.0, 3, 0, 0], [-1, -1, -1, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
STATISTICS = (mean_weight, second_moment, chi2, renyi2, ess, pareto_k, kl)


def test_wrong_recipe_mixes_two_populations():
    mean = ADVANTAGE.mean()
    variance = ((ADVANTAGE - mean) ** 2)[MASK].mean()
    white = (ADVANTAGE - mean) / variance.sqrt()
    assert float(mean) == 0.25
    assert [float(white[0, 0]), float(white[1, 0])] == pytest.approx([1.45699, -0.66227], abs=5e-6)
    assert float(white[MASK].mean()) == pytest.approx(0.044, abs=5e-4)


def test_ours_takes_both_over_real_tokens(poison):
    dirty = torch.where(MASK, ADVANTAGE, poison)
    mean = masked_mean(dirty, MASK)
    white = (dirty - mean) / masked_mean((dirty - mean) ** 2, MASK).sqrt()
    assert float(mean) == pytest.approx(1 / 3, rel=1e-12)
    assert [float(white[0, 0]), float(white[1, 0])] == pytest.approx([1.414214, -0.707107], abs=5e-7)
    assert float(masked_mean(white, MASK)) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("reduce", [masked_sum, masked_mean])
def test_every_reduction_along_every_dimension(reduce, dim, poison):
    values, mask = torch.arange(8.0).reshape(2, 4), MASK
    found = reduce(torch.where(mask, values, poison), mask, dim)
    picked = torch.where(mask, values, 0.0)
    total, count = (picked.sum(), mask.sum()) if dim is None else (picked.sum(dim), mask.sum(dim))
    assert torch.equal(found, total if reduce is masked_sum else total / count)


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda f: f.__name__)
def test_every_statistic_of_weights_counts_real_tokens(statistic, poison):
    weights = torch.linspace(0.1, 3.0, 200, dtype=torch.float64).reshape(10, 20) ** 2
    mask = torch.ones(10, 20, dtype=torch.bool)
    mask[:, 12:] = False
    dirty = torch.where(mask, weights, poison)
    assert float(statistic(dirty, mask)) == pytest.approx(float(statistic(weights[mask])), rel=1e-12)
