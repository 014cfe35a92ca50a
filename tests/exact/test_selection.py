"""Conditioned and pooled laws: probabilities, recorded numbers, and refusals."""

import pytest
import torch

from testbed import PrefixSchedule, PrefixTree, TabularPolicy, cuts, enumerate_law
from testbed.core.errors import InputError
from testbed.exact.selection import conditioned, pooled


def law(seed):
    env = PrefixTree.random(2, 2, seed, binary=False)
    mus = (TabularPolicy.random(2, 2, seed + 10), TabularPolicy.random(2, 2, seed + 20))
    return enumerate_law(env, TabularPolicy.random(2, 2, seed), PrefixSchedule(mus, cuts((1,))))


def test_conditioning_is_bayes_and_leaves_the_record_alone():
    whole = law(1)
    keep = whole.batch.tokens[:, 0] == 1
    kept, probability = conditioned(whole, keep)
    assert probability == pytest.approx(float(whole.probs[keep].sum()), rel=1e-12)
    assert torch.allclose(kept.probs * probability, whole.probs[keep], rtol=1e-12)
    assert torch.equal(kept.batch.logp_behavior, whole.batch.logp_behavior[keep])
    assert torch.equal(kept.branch, whole.branch[keep])


def test_keeping_everything_changes_nothing():
    whole = law(2)
    kept, probability = conditioned(whole, torch.ones(4, dtype=torch.bool))
    assert probability == pytest.approx(1, abs=1e-12) and torch.allclose(kept.log_prob, whole.log_prob, atol=1e-12)


def test_a_pool_averages_by_share():
    laws = [law(1), law(2), law(3)]
    pool = pooled(laws, [0.5, 0.0, 0.5])
    assert pool.batch.group.unique().tolist() == [0, 2]
    mean = 0.5 * laws[0].expect(laws[0].batch.reward) + 0.5 * laws[2].expect(laws[2].batch.reward)
    assert float(pool.expect(pool.batch.reward)) == pytest.approx(float(mean), rel=1e-12)


def test_selecting_from_a_pool_shifts_it_to_prompts_where_more_is_kept():
    pool = pooled([law(1), law(2)], [0.5, 0.5])
    kept, probability = conditioned(pool, (pool.batch.group == 0) | (pool.batch.tokens[:, 0] == 0))
    assert float(kept.probs[kept.batch.group == 0].sum()) == pytest.approx(0.5 / probability, rel=1e-12)


def test_impossible_selections_and_pools_are_refused():
    whole = law(1)
    with pytest.raises(InputError, match="positive probability"):
        conditioned(whole, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(InputError, match="keep"):
        conditioned(whole, torch.ones(3, dtype=torch.bool))
    for shares in ([1.0], [0.5, 0.6], [1.5, -0.5]):
        with pytest.raises(InputError):
            pooled([whole, whole], shares)
    with pytest.raises(InputError):
        pooled([], [])
