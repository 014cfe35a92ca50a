"""BR-43: the replay buffer is keyed on the wrong shape.

https://github.com/huggingface/trl/issues/6804 and https://github.com/huggingface/trl/pull/6821: a per-response vector is
passed where [groups, n] is expected, and unit tests with hand-made tables never notice. Standard deviations
[.5, .5, 0, 0] of two groups of two: one True instead of [True, False]. Ours is tested through the whole call path, from
the rollout to the gradient.
"""

import itertools

import pytest
import torch

from testbed import InputError, TabularPolicy, group_advantage, policy_loss
from testbed.environments.base import Environment
from testbed.rollout import rollout

ORDERS = [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 0]]


class TwoPrompts(Environment):
    """Prompt 0 rewards the first token, prompt 1 rewards nothing."""

    vocab_size, horizon, n_prompts = 2, 2, 2

    def reward(self, tokens, mask, group):
        return tokens[:, 0].double() * (group == 0)


class Scripted:
    """A chooser whose k-th response of each prompt begins with token k mod 2."""

    def __init__(self, group):
        self.first = [sum(g == h for h in group[:i]) % 2 for i, g in enumerate(group)]

    def choose(self, probs, key=None):
        return torch.tensor([self.first[int(row)] for row, _ in key.tolist()])


def drawn(group):
    mu, pi = TabularPolicy.random(2, 2, 1), TabularPolicy.random(2, 2, 2)
    return rollout(TwoPrompts(), mu, len(group), Scripted(group), target=pi, group=torch.tensor(group))


def live_groups(batch, **options):
    """Return, for each prompt, whether its group has a learning signal."""
    advantage = group_advantage(batch, **options)
    return {int(g): bool((advantage[batch.group == g] != 0).any()) for g in batch.group.unique()}


def test_wrong_recipe_reduces_the_wrong_axis():
    std = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert (std > 0).any(-1).tolist() is True
    assert (std.reshape(2, 2) > 0).any(-1).tolist() == [True, False]


@pytest.mark.parametrize("group", ORDERS)
def test_ours_finds_the_live_group_through_the_whole_path(group):
    batch = drawn(group)
    assert live_groups(batch) == {0: True, 1: False}
    keep = torch.tensor([live_groups(batch)[g] for g in group])
    buffer = batch.select(keep)
    assert buffer.group.tolist() == [0, 0] and sorted(buffer.reward.tolist()) == [0.0, 1.0]
    logp = buffer.logp_target.clone().requires_grad_(True)
    policy_loss(logp, buffer, "tis", group_advantage(buffer)).backward()
    assert logp.grad.ne(0).all()


@pytest.mark.parametrize(
    ("group", "baseline", "scale", "ddof"),
    list(itertools.product(ORDERS, ("group_mean", "leave_one_out"), ("none", "std"), (0, 1))),
)
def test_every_advantage_goes_by_label_not_by_position(group, baseline, scale, ddof):
    options = {"baseline": baseline, "scale": scale, "ddof": ddof}
    batch = drawn(group)
    assert live_groups(batch, **options) == {0: True, 1: False}
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(group_advantage(batch.select(order), **options), group_advantage(batch, **options)[order])
    renamed = batch.replaced(group=batch.group * 1000 - 7)
    assert torch.equal(group_advantage(renamed, **options), group_advantage(batch, **options))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("shape", [(4, 1), (2, 2), (1, 4)])
def test_a_table_of_rewards_is_refused(shape):
    batch = drawn([0, 0, 1, 1])
    with pytest.raises(InputError, match=r"`reward` must have shape \(4,\)"):
        group_advantage(batch.replaced(reward=batch.reward.reshape(shape)))
