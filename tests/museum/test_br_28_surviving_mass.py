"""BR-28: top-p or top-k makes every ratio equal to the surviving mass.

https://github.com/huggingface/trl/issues/6789, https://github.com/modelscope/ms-swift/pull/8442,
https://github.com/PrimeIntellect-ai/prime-rl/pull/2601, https://github.com/vllm-project/vime/pull/73; support replay:
https://github.com/vllm-project/vllm/pull/49577. The sampler draws from q = (.625, .375, 0, 0), the trainer scores on
p = (.5, .3, .15, .05): both ratios are S = .8, and the .15 that f has on a cut token cannot be weighted back.
"""

import pytest
import torch

from testbed import PrefixTree, RandomChooser, TabularPolicy, Truncated, enumerate_law, log_ratios, value_terms
from testbed.rollout import rollout
from testbed.stats.weight_statistics import mean_weight
from tests.museum.specimens import close, fired, last_real, weights
from tests.weighting.worlds import PAIRS

P = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
F = [1.0, 0.0, 1.0, 0.0]
EMPTY = torch.empty(1, 0, dtype=torch.int64)


def world(horizon=1, **knobs):
    """Return (law of the truncated sampler scored under the whole target, target, sampler)."""
    rewards = [F[k // 4 ** (horizon - 1)] for k in range(4**horizon)]
    target = TabularPolicy.from_probs(P.expand(sum(4**t for t in range(horizon)), 4).clone())
    sampler = Truncated(target, **knobs)
    return enumerate_law(PrefixTree(4, horizon, rewards), target, sampler), target, sampler


def test_wrong_recipe_trusts_the_weights():
    p, f = P[0], torch.tensor(F, dtype=torch.float64)
    q = torch.where(p >= 0.3, p, 0.0) / 0.8
    assert q.tolist() == pytest.approx([0.625, 0.375, 0, 0])
    weighted = (q * torch.where(q > 0, p / q, 0.0) * f).sum()
    assert float(weighted) == pytest.approx(0.5) and float((p * f).sum()) == pytest.approx(0.65)


def test_ours_reports_mass_mean_weight_and_the_missing_support():
    law, _, sampler = world(top_p=0.8)
    ratio = weights("exact", law.batch).value[:, 0]
    assert close(sampler.surviving_mass(EMPTY), [0.8]) and close(ratio, [0.8, 0.8])
    assert float(mean_weight(ratio, probs=law.probs)) == pytest.approx(0.8, rel=1e-10)
    assert float(law.expect(value_terms(law.batch))) == pytest.approx(0.5, rel=1e-10)
    violated = torch.isneginf(sampler.next_log_probs(EMPTY)) & (P > 0)
    assert violated.tolist() == [[False, False, True, True]]
    assert float((P[0] * torch.tensor(F)).sum() - law.expect(value_terms(law.batch))) == pytest.approx(0.15, rel=1e-10)


def test_ours_says_so_of_any_batch_drawn_that_way():
    """Every ratio is .8 whatever is drawn, so that the diagnosis does not depend on the draw."""
    env = PrefixTree(4, 1, F)
    _, target, sampler = world(top_p=0.8)
    complaints = fired(rollout(env, sampler, 50, RandomChooser(0), target=target))
    assert "top-p" in complaints["unit_mean"] and "0.8000" in complaints["unit_mean"]


def test_ours_replays_the_support_and_changes_the_target():
    _, target, sampler = world(top_p=0.8)
    replayed = enumerate_law(PrefixTree(4, 1, F), Truncated(target, top_p=0.8), sampler)
    assert close(weights("exact", replayed.batch).value, torch.ones(2, 1))
    assert close(replayed.expect(value_terms(replayed.batch)), 0.625)  # E_q[f]: another quantity than E_p[f] = .65


@pytest.mark.parametrize(
    ("knobs", "mass"),
    [
        ({"top_k": 1}, 0.5),
        ({"top_k": 3}, 0.95),
        ({"top_p": 0.5}, 0.5),
        ({"top_p": 0.96}, 1.0),
        ({"top_k": 2, "top_p": 0.6}, 0.5),
    ],
)
def test_every_filter_makes_the_ratio_its_mass(knobs, mass):
    law, _, sampler = world(**knobs)
    assert close(log_ratios(law.batch).exp(), torch.full_like(law.batch.logp_target, mass))
    assert close(sampler.surviving_mass(EMPTY), [mass])


def test_the_mass_compounds_over_a_response():
    law, _, _ = world(horizon=3, top_p=0.8)
    product = last_real(weights("sequence_product", law.batch).value, law.batch)
    assert close(product, torch.full_like(product, 0.8**3)) and close(law.expect(product), 0.8**3)


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_brings_back_what_was_never_drawn(rule, granularity):
    """Functions of the cut tokens alone have estimate 0 under any weights; their truth is p of those tokens."""
    law, _, _ = world(horizon=2, top_p=0.8)
    w = weights(rule, law.batch, granularity)
    cut = (law.batch.tokens >= 2).any(1)
    assert float(law.expect(torch.where(cut, last_real(w.value, law.batch), 0.0))) == 0.0
    assert not cut.any() and 1 - float(P[0, :2].sum()) ** 2 == pytest.approx(0.36)  # what they have under the target
