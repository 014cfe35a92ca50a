"""Per-decision gradient: written out term by term, weights of zero, missing rewards."""

import pytest
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError, MissingField
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.per_decision import per_decision_gradient_terms, weighted_reward_to_go
from testbed.policies.tabular import TabularPolicy


@pytest.fixture
def batch():
    reward = torch.tensor([[1.0, -2.0, 0.5], [3.0, 1.0, 7.0]], dtype=torch.float64)
    return SegmentedBatch(
        tokens=torch.tensor([[0, 1, 1], [1, 0, 0]]),
        mask=torch.tensor([[True] * 3, [True, True, False]]),
        segment=torch.zeros(2, 3, dtype=torch.int64),
        logp_target=-torch.ones(2, 3).double(),
        logp_behavior=-torch.ones(2, 3).double(),
        reward=torch.ones(2).double(),
        group=torch.tensor([0, 1]),
        token_reward=reward,
    )


WEIGHTS = torch.tensor([[0.5, 2.0, 4.0], [1.5, 3.0, 9.0]], dtype=torch.float64)


def test_every_reward_credits_the_tokens_up_to_it(batch):
    pi = TabularPolicy.random(2, 3, 0)
    expected = torch.zeros(2, *pi.logits.shape, dtype=torch.float64)
    for b in range(2):
        for u in range(int(batch.lengths[b])):
            upto = (torch.arange(3) <= u).double().expand(2, 3) * batch.mask
            expected[b] += WEIGHTS[b, u] * batch.token_reward[b, u] * pi.score_terms(batch.tokens, upto)[b]
    torch.testing.assert_close(per_decision_gradient_terms(batch, WEIGHTS, pi), expected, rtol=1e-12, atol=1e-14)


def test_one_weight_for_all_gives_the_return_minus_what_was_earned_before(batch):
    pi = TabularPolicy.random(2, 3, 0)
    earned = batch.token_reward.sum(1, keepdim=True) - (batch.token_reward.cumsum(1) - batch.token_reward)
    expected = gradient_terms(batch, torch.ones(2, 3), pi, earned)
    terms = per_decision_gradient_terms(batch, torch.ones(2, 3), pi)
    torch.testing.assert_close(terms, expected, rtol=1e-12, atol=1e-14)


def test_a_weight_of_zero_removes_a_reward_of_any_size(batch):
    batch = batch.replaced(token_reward=torch.where(torch.arange(3) == 1, 1e308, batch.token_reward))
    to_go = weighted_reward_to_go(batch, torch.where(torch.arange(3) == 1, 0.0, WEIGHTS))
    assert to_go.tolist() == [[2.5, 2.0, 2.0], [4.5, 0.0, 0.0]]


def test_it_needs_rewards_and_one_weight_per_token(batch):
    with pytest.raises(MissingField, match="token_reward"):
        weighted_reward_to_go(batch.replaced(token_reward=None), WEIGHTS)
    with pytest.raises(InputError, match="`w` must have shape"):
        weighted_reward_to_go(batch, WEIGHTS[:, :1])
