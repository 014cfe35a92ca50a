"""BR-19: the mask is applied in one reduction and forgotten in the other.

https://github.com/arcee-ai/NeMo-RL/pull/24: ratios 1 and 10 under a band of [.5, 5]. Every reduction must give what it
gives with the second token removed.
"""

import pytest
import torch

from tests.museum.specimens import REDUCTIONS, contributing, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, SURROGATES, batch_with_ratios

BAND = {"low": 0.5, "high": 5.0}


def two_tokens():
    batch = batch_with_ratios([[0.0, torch.log(torch.tensor(10.0)).item()]])
    return batch.replaced(logp_target=batch.logp_target - 1, logp_behavior=batch.logp_behavior - 1)


def test_wrong_recipe_forgets_it_in_the_other_path():
    ratio, keep = torch.tensor([1.0, 10.0]), torch.tensor([1.0, 0.0])
    token_mean = (ratio * keep).sum() / keep.sum()
    sequence_mean = ratio.mean()  # no mask here
    assert [float(token_mean), float(sequence_mean)] == [1.0, 5.5]


@pytest.mark.parametrize("reduction", REDUCTIONS, ids="-".join)
def test_ours_removes_the_token_in_every_reduction(reduction):
    batch = two_tokens()
    one = contributing(batch, torch.ones(1, 2))
    loss, gradient = loss_and_gradient(batch, "icepop", None, reduction, one, **BAND)
    alone = batch.replaced(mask=torch.tensor([[True, False]]))
    want, slope = loss_and_gradient(alone, "icepop", None, reduction, one, **BAND)
    counted = 0.5 if reduction in (("token_mean", "original"), ("sequence_mean", "original")) else 1.0
    assert float(loss) == pytest.approx(float(want) * counted, rel=1e-12)
    assert float(gradient[0, 1]) == 0.0
    torch.testing.assert_close(gradient, slope * counted, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_reduction_reads_a_gated_token(rule, granularity):
    """Rewriting the advantage of gated tokens changes neither gradient nor, for weights, value."""
    batch = ragged()
    advantage = batch.reward[:, None].expand(4, 4).clone()
    gate = weights(rule, batch, granularity, advantage).gate
    for reduction in REDUCTIONS:
        value, gradient = loss_and_gradient(batch, rule, granularity, reduction, advantage)
        changed = torch.where(gate, advantage, 7.0 * advantage)  # the same sign, so that clips decide alike
        other, slope = loss_and_gradient(batch, rule, granularity, reduction, changed)
        assert torch.equal(slope, gradient) and not slope[~gate].any()
        if rule not in SURROGATES:
            assert torch.equal(other, value)
