"""BR-12: the reward sits on a token that was rejected.

https://github.com/verl-project/verl/pull/6362: summing rewards over kept tokens turns a response that earned 1 into one
that earned 0, and its group loses its signal. Both scopes can be defended, so both have a name, and the one that leaves
returns alone is the default.
"""

import pytest
import torch

from testbed import MissingField, group_advantage
from testbed.estimators.reward_scope import scoped_rewards
from tests.museum.specimens import ragged, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

STEPS = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)


def group_of_two():
    batch = batch_with_ratios([[0.1, 3.0], [-0.1, 0.2]], reward=[1.0, 0.0])
    return batch.replaced(token_reward=STEPS)


def test_wrong_recipe_loses_the_return():
    gate = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    reward = (STEPS * gate).sum(1)
    assert (reward - reward.mean()).tolist() == [0.0, 0.0]


def test_ours_leaves_returns_alone_unless_asked():
    batch = group_of_two()
    gate = weights("mis", batch, cap=3.0).gate
    assert gate.tolist() == [[True, False], [True, True]]
    expected = pytest.approx([0.7071068, -0.7071068], abs=5e-8)
    assert group_advantage(batch, "group_mean", "std", ddof=1).tolist() == expected
    default = scoped_rewards(batch, gate)
    assert default.rewards_on_rejected == 1
    assert group_advantage(batch.replaced(reward=default.reward), scale="std", ddof=1).tolist() == expected
    kept = scoped_rewards(batch, gate, "kept_tokens")
    assert kept.rewards_on_rejected == 1 and kept.reward.tolist() == [0.0, 0.0]
    assert group_advantage(batch.replaced(reward=kept.reward), scale="std", ddof=1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_gate_edits_a_return(rule, granularity):
    batch = ragged()
    before = group_advantage(batch)
    gate = weights(rule, batch, granularity).gate
    default, kept = scoped_rewards(batch, gate), scoped_rewards(batch, gate, "kept_tokens")
    assert torch.equal(default.reward, batch.reward) and torch.equal(group_advantage(batch), before)
    touched = ((batch.token_reward != 0) & batch.mask & ~gate).any(1)
    assert default.rewards_on_rejected == kept.rewards_on_rejected == int(touched.sum())
    assert torch.equal(kept.reward[~touched], batch.reward[~touched])
    lost = torch.where(gate, 0.0, batch.token_reward).sum(1)
    torch.testing.assert_close(kept.reward, batch.reward - lost, rtol=1e-12, atol=1e-15)


def test_the_other_scope_needs_to_know_where_rewards_sit():
    batch = batch_with_ratios([[0.1, 3.0]])
    with pytest.raises(MissingField, match="token_reward"):
        scoped_rewards(batch, batch.mask, "kept_tokens")


@pytest.mark.usefixtures("untyped")
def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match="`scope` must be"):
        scoped_rewards(group_of_two(), group_of_two().mask, "tokens")
