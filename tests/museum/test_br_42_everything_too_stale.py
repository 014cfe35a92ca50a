"""BR-42: everything is too stale, the batch is empty, or one task is starved.

https://github.com/verl-project/verl/issues/6975, https://github.com/NVIDIA-NeMo/RL/pull/2458 and
https://github.com/verl-project/verl/issues/7579. Four samples of staleness 5 under a limit of 4 leave nothing: an answer, not
a NaN. And what a limit on age keeps is biased wherever long responses are old: measured exactly below, where every ratio
is 1 and nothing recorded shows it.
"""

import math

import pytest
import torch

from testbed import InputError, PrefixTree, TabularPolicy, enumerate_law, group_advantage, log_ratios, value_terms
from testbed.exact.selection import conditioned
from testbed.rollout.staleness import select_by_staleness, staleness
from testbed.stats.weight_statistics import chi2, ess, mean_weight
from tests.museum.specimens import REDUCTIONS, close, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

NOW, HORIZON = 10, 4


def four_samples(versions=(5, 5, 5, 5)):
    batch = batch_with_ratios(torch.full((4, 2), 0.1, dtype=torch.float64))
    return batch.replaced(
        version=torch.tensor(versions)[:, None].expand(4, 2).clone(), group=torch.tensor([0, 0, 1, 1])
    )


def arriving_together(target_is_behavior):
    """Return a law of responses that all end now, one update per token: the longer, the older their first token."""
    mu = TabularPolicy.random(2, HORIZON, 1, scale=0.5)
    pi = mu if target_is_behavior else TabularPolicy.random(2, HORIZON, 2, scale=0.5)
    law = enumerate_law(PrefixTree.random(2, HORIZON, 3, eos=1), pi, mu)
    remaining = law.batch.lengths[:, None] - 1 - torch.arange(HORIZON)
    return law, law.batch.replaced(version=NOW - remaining)


def test_wrong_recipe_averages_what_is_not_there():
    age, loss = torch.tensor([5, 5, 5, 5]), torch.ones(4)
    assert loss[age <= 4].mean().isnan()


def test_ours_says_empty_and_names_the_starved():
    found = select_by_staleness(four_samples(), NOW, limit=4)
    assert found.empty and found.batch.batch_size == 0
    assert found.kept == {0: 0, 1: 0} and found.dropped == {0: 2, 1: 2} and found.starved == (0, 1)
    assert not group_advantage(found.batch).any() and group_advantage(found.batch).shape == (0,)
    raw = weights("exact", found.batch).raw
    assert [float(f(raw)) for f in (mean_weight, ess, chi2)] == [0.0, 0.0, 0.0] and mean_weight(raw).n == 0


def test_ours_counts_by_source():
    batch = four_samples((10, 5, 5, 5))
    found = select_by_staleness(batch, NOW, limit=4)
    assert not found.empty and found.rows.tolist() == [0]
    assert found.kept == {0: 1, 1: 0} and found.dropped == {0: 1, 1: 2} and found.starved == (1,)
    by_worker = select_by_staleness(batch, NOW, limit=4, source=torch.tensor([7, 8, 7, 8]))
    assert by_worker.kept == {7: 1, 8: 0} and by_worker.starved == (8,)
    assert select_by_staleness(batch, NOW, limit=5).rows.tolist() == [0, 1, 2, 3]  # a tie is kept


@pytest.mark.parametrize("limit", range(HORIZON))
def test_ours_measures_the_selection_bias_exactly(limit):
    for same in (True, False):
        law, batch = arriving_together(same)
        young = staleness(batch, NOW) <= limit
        assert torch.equal(young, batch.lengths <= limit + 1)
        kept, share = conditioned(law, young)
        assert torch.equal(select_by_staleness(batch, NOW, limit).batch.tokens, kept.batch.tokens)
        whole, left = value_terms(law.batch), value_terms(kept.batch)
        bias = kept.expect(left) - law.expect(whole)
        covariance = law.expect(whole * young) - law.expect(whole) * law.expect(young.double())
        assert close(bias, covariance / share)
        if same:
            assert not log_ratios(kept.batch).any()  # nothing recorded shows it
            assert (limit < HORIZON - 1) == (abs(float(bias)) > 1e-3)


def test_age_that_is_random_given_the_length_can_be_weighted_back():
    """If P(young | y) > 0 is known, its inverse repairs the estimate; where it is 0 nothing does."""
    law, batch = arriving_together(True)
    chance = 1.0 / batch.lengths  # kept with a probability that falls with the length
    f = value_terms(law.batch)
    assert close(law.expect(f * chance / chance), law.expect(f))
    assert abs(float(law.expect(f * chance) / law.expect(chance) - law.expect(f))) > 1e-3
    never = staleness(batch, NOW) == HORIZON - 1
    lost = law.expect(torch.where(never, f, 0.0))
    assert abs(float(lost)) > 1e-3


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_survives_an_empty_batch(rule, granularity):
    empty = select_by_staleness(ragged(), current=9, limit=0).batch
    assert empty.batch_size == 1 and empty.n_tokens == 0  # a row without tokens has no age
    nothing = select_by_staleness(ragged().select([0, 1, 3]), current=9, limit=0).batch
    for batch in (empty, nothing):
        for reduction in REDUCTIONS:
            loss, gradient = loss_and_gradient(batch, rule, granularity, reduction)
            assert float(loss) == 0.0 and not math.isnan(float(loss)) and not gradient.any()
        assert weights(rule, batch, granularity).value.shape == (batch.batch_size, 4)


def test_versions_from_the_future_are_refused():
    with pytest.raises(InputError, match=r"`version` must lie in 0\.\.4"):
        staleness(four_samples(), 4)
    with pytest.raises(InputError, match="`limit`"):
        select_by_staleness(four_samples(), NOW, -1)
