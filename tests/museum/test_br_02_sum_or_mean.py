"""BR-02: is the ratio of a response the sum or the mean of its log ratios?

https://github.com/huggingface/trl/issues/5814 and https://github.com/huggingface/trl/pull/5815: reported as a bug, answered
with "the sum is the probability ratio, the mean is another method". One word for two objects: only the sum estimates.
"""

import math

import pytest
import torch

from testbed.weighting.rule import GRANULARITIES
from tests.museum.specimens import close, exact_world, last_real, target_probs, weights
from tests.weighting.worlds import batch_with_ratios

UNBIASED_AT_THE_END = ("prefix", "segment_prefix", "sequence_product")


def test_wrong_recipe_uses_the_mean_as_a_probability_ratio():
    log_ratio = [0.002] * 1000
    assert math.exp(sum(log_ratio) / len(log_ratio)) == pytest.approx(1.002002, abs=5e-7)
    law, _ = exact_world()
    mean = (law.batch.logp_target - law.batch.logp_behavior).mean(1).exp()
    assert abs(float(law.expect(mean * law.batch.reward)) - float((target_probs(law) * law.batch.reward).sum())) > 1e-2


def test_ours_tells_them_apart_and_only_the_product_estimates():
    batch = batch_with_ratios(torch.full((1, 1000), 0.002, dtype=torch.float64))
    assert float(weights("sequence_product", batch).value[0, 0]) == pytest.approx(7.389056, abs=1e-6)
    assert float(weights("tis", batch, "sequence_geomean").value[0, 0]) == pytest.approx(1.002002, abs=5e-7)
    law, _ = exact_world()
    value = weights("sequence_product", law.batch).value[:, 0]
    assert close(law.expect(value * law.batch.reward), (target_probs(law) * law.batch.reward).sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_granularity_on_every_function_of_the_response(granularity, seed):
    """E_mu[w 1{y}] against E_pi[1{y}], for all responses y at once: they span all functions of the response."""
    law, _ = exact_world(seed)
    w = last_real(weights("tis", law.batch, granularity, cap=math.inf).value, law.batch)
    error = (law.probs * w - target_probs(law)).abs()
    if granularity in UNBIASED_AT_THE_END:
        assert close(law.probs * w, target_probs(law))
    else:
        assert float(error.max()) > 1e-2
