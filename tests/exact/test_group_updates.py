"""Groups by multiset against ordered groups one by one, each through the loss a trainer differentiates."""

from itertools import product

import pytest
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError, TooLarge
from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.advantage import group_advantage
from testbed.estimators.group_gradient import group_coefficients
from testbed.estimators.loss import policy_loss
from testbed.exact.group_updates import expected_group_update, group_compositions
from testbed.exact.law import enumerate_law
from testbed.policies.tabular import TabularPolicy


@pytest.fixture
def laws():
    pi, mu = TabularPolicy.random(2, 2, 0), TabularPolicy.random(2, 2, 1)
    env = PrefixTree.random(2, 2, 2, eos=1)
    return pi, enumerate_law(env, pi, mu), enumerate_law(env, pi, pi)


def ordered_update(pi, parts, baseline, scale, rule, normalizer):
    """Every ordered group on its own: advantages, loss, autograd through the logits."""
    total = torch.zeros_like(pi.logits)
    slots = [law for law, n in parts for _ in range(n)]
    for rows in product(*[range(len(law.probs)) for law in slots]):
        chance = torch.stack([law.probs[r] for law, r in zip(slots, rows, strict=True)]).prod()
        batch = SegmentedBatch.concatenated([law.batch.select([r]) for law, r in zip(slots, rows, strict=True)])
        logits = pi.logits.clone().requires_grad_(True)
        logp = torch.where(batch.mask, TabularPolicy(logits).score(batch.tokens), 0.0)
        a = group_advantage(batch, baseline, scale)
        policy_loss(logp, batch, rule, advantage=a, normalizer=normalizer).backward()
        total -= chance * logits.grad
    return total


@pytest.mark.parametrize("rule", ["none", "sequence_product", "tis"])
@pytest.mark.parametrize("normalizer", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize(("baseline", "scale"), [("none", "none"), ("leave_one_out", "none"), ("group_mean", "std")])
def test_the_expected_update_is_that_of_training_on_every_group(laws, baseline, scale, normalizer, rule):
    pi, stale, fresh = laws
    parts = [(stale, 2), (fresh, 1)]
    groups = group_compositions(parts)
    coefficient = group_coefficients(groups.batch, baseline, scale, rule=rule, normalizer=normalizer)
    found = expected_group_update(groups, pi, coefficient)
    torch.testing.assert_close(
        found, ordered_update(pi, parts, baseline, scale, rule, normalizer), rtol=1e-11, atol=1e-15
    )


def test_compositions_are_a_law(laws):
    _, stale, fresh = laws
    groups = group_compositions([(stale, 2), (fresh, 3)])
    assert groups.index.shape == (6 * 10, 5)  # C(3+1, 2) times C(3+2, 3)
    assert float(groups.probs.sum()) == pytest.approx(1.0, rel=1e-14)
    assert groups.batch.group.tolist() == [g for g in range(60) for _ in range(5)]
    for slot, law in enumerate([stale, stale, fresh, fresh, fresh]):
        assert bool(((groups.index[:, slot] < 3) == (law is stale)).all())
    rewards = groups.responses.reward[groups.index]
    mean = 2 * stale.expect(stale.batch.reward) + 3 * fresh.expect(fresh.batch.reward)
    assert float(groups.expect(rewards.sum(1))) == pytest.approx(float(mean), rel=1e-13)


def test_parts_of_nothing(laws):
    pi, stale, fresh = laws
    one, both = group_compositions([(fresh, 2)]), group_compositions([(stale, 0), (fresh, 2)])
    torch.testing.assert_close(one.probs, both.probs, rtol=0, atol=0)
    first, second = (expected_group_update(g, pi, group_coefficients(g.batch)) for g in (one, both))
    torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-16)


def test_refusals(laws):
    pi, stale, fresh = laws
    for sizes in ([(stale, 0)], [(stale, -1), (fresh, 2)], []):
        with pytest.raises(InputError, match="at least one"):
            group_compositions(sizes)
    with pytest.raises(TooLarge, match="6 times 6"):
        group_compositions([(stale, 2), (fresh, 2)], limit=20)
    groups = group_compositions([(fresh, 2)])
    with pytest.raises(InputError, match="`coefficient` must have shape"):
        expected_group_update(groups, pi, torch.zeros(2, 2))
