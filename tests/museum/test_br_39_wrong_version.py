"""BR-39: the declared version is not the one that drew the tokens (stale cache, sleep mode).

https://github.com/NVIDIA-NeMo/RL/pull/4018, https://github.com/NovaSky-AI/SkyRL/issues/2246,
https://github.com/RLinf/RLinf/pull/96 and https://github.com/huggingface/trl/issues/5312: log-prob gaps grow from .015 to
.201, gradient norms from 8 to 136. Here the simulator draws from version v - 17 and records the log-probs of v. If they
were right, E[w] = 1 would hold for the ratio of any policy to them.
"""

import itertools
import math

import pytest
import torch

from testbed import PrefixTree, RandomChooser, TabularPolicy, enumerate_law, log_ratios
from testbed.diagnosis.response_means import log_e_value
from testbed.exact.moments import multisets
from testbed.policies.families import steps_behind
from testbed.rollout import rollout
from testbed.stats.gates import MeanGate
from testbed.weighting.rule import GRANULARITIES
from tests.museum.specimens import close

BEHIND = 17
POWER = 1 - 1e-6
ENV = PrefixTree(3, 2, rewards=[0.0] * 9)


def history():
    """Return 19 checkpoints on a straight path: the target, the version declared, and 17 before it."""
    step = 0.04 * TabularPolicy.random(3, 2, 8).logits
    return [TabularPolicy(k * step) for k in range(BEHIND + 2)]


def recorded(drawn_by):
    """Return the law of responses of one version, with the log-probs of the declared version recorded."""
    checkpoints = history()
    declared, target = steps_behind(checkpoints, 1), steps_behind(checkpoints, 0)
    law = enumerate_law(ENV, target, steps_behind(checkpoints, 1 + drawn_by))
    return law, law.batch.replaced(logp_behavior=declared.score(law.batch.tokens))


def unit_mean_gate(name):
    """Return the test of E[w] = 1: exact mean and range, error rate 5e-9, n from the exact effect of the stale version."""
    (healthy, batch), (stale, mislabeled) = recorded(0), recorded(BEHIND)
    w, v = (log_ratios(b, "sequence_product")[:, 0].exp() for b in (batch, mislabeled))
    variance = max(float(law.expect(x**2) - law.expect(x) ** 2) for law, x in ((healthy, w), (stale, v)))
    effect = abs(float(stale.expect(v)) - 1)
    return MeanGate(
        name=name, mean=1.0, variance=variance, low=float(w.min()), high=float(w.max()), effect=effect, power=POWER
    )


def sampled(drawn_by, n, generator):
    checkpoints = history()
    declared, target = steps_behind(checkpoints, 1), steps_behind(checkpoints, 0)
    batch = rollout(ENV, steps_behind(checkpoints, 1 + drawn_by), n, RandomChooser(generator), target=target)
    batch = batch.replaced(logp_behavior=declared.score(batch.tokens))
    return log_ratios(batch, "sequence_product")[:, 0].exp()


def test_wrong_recipe_believes_the_tag():
    """The weights look harmless, and the estimate they give of the constant 1 is not 1."""
    law, mislabeled = recorded(BEHIND)
    w = log_ratios(mislabeled, "sequence_product")[:, 0].exp()
    assert float(w.max()) < 1.2 and abs(float(law.expect(w)) - 1) > 0.01
    honest, batch = recorded(0)
    assert close(honest.expect(log_ratios(batch, "sequence_product")[:, 0].exp()), 1.0)


@pytest.mark.stat
def test_ours_rejects_the_stale_version_and_not_the_healthy_one(generator):
    gate = unit_mean_gate("declared version")
    assert gate.alpha == 5e-9 and gate.sample_size() < 200_000
    assert not gate.decide(sampled(BEHIND, gate.sample_size(), generator)).passed
    assert gate.decide(sampled(0, gate.sample_size(), generator)).passed


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ours_keeps_its_level_exactly(n):
    """The diagnosis's e-value: mean exactly 1 on honest records, hence above 1/alpha with probability <= alpha."""
    law, batch = recorded(0)
    index, prob = multisets(law, n)
    ratio = log_ratios(batch)
    values = torch.tensor([math.exp(log_e_value(ratio[rows], batch.mask[rows])) for rows in index], dtype=torch.float64)
    assert close((prob * values).sum(), 1.0)
    for alpha in (0.5, 0.9, 0.99):
        assert float(prob[values >= 1 / alpha].sum()) <= alpha


@pytest.mark.parametrize(("granularity", "behind"), list(itertools.product(GRANULARITIES, (0, 5, BEHIND))))
def test_every_granularity_with_mean_one_sees_it(granularity, behind):
    law, batch = recorded(behind)
    means = law.expect(log_ratios(batch, granularity).exp())
    if granularity == "sequence_geomean":
        assert not close(means, torch.ones(2))  # not even on honest records: no test can stand on it
    elif behind == 0:
        assert close(means, torch.ones(2))
    else:
        assert float((means - 1).abs().min()) > 1e-3


def test_half_of_a_response_from_a_stale_cache_is_enough():
    """Only the first token is stale; tested on the token ratio of that position, exactly."""
    checkpoints = history()
    declared, target = steps_behind(checkpoints, 1), steps_behind(checkpoints, 0)
    logits = declared.logits.clone()
    logits[0] = steps_behind(checkpoints, 1 + BEHIND).logits[0]
    law = enumerate_law(ENV, target, TabularPolicy(logits))
    batch = law.batch.replaced(logp_behavior=declared.score(law.batch.tokens))
    means = law.expect(log_ratios(batch).exp())
    assert abs(float(means[0]) - 1) > 1e-3 and close(means[1], 1.0)
