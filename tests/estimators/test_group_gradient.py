"""Coefficients of many groups at once against the gradient of `policy_loss` of each, and hand numbers."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.estimators.advantage import group_advantage
from testbed.estimators.group_gradient import group_coefficients
from testbed.estimators.loss import policy_loss
from testbed.estimators.weighted_baseline import WEIGHTED_BASELINES, weighted_group_advantage
from tests.weighting.worlds import batch_of

RULES = [("none", {}), ("tis", {"cap": 1.1}), ("icepop", {"low": 0.8, "high": 1.3}), ("seq_mis", {"cap": 1.2})]


@pytest.fixture
def groups(generator):
    target, behavior = (-3 * torch.rand(9, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths = torch.tensor([4, 1, 2, 3, 3, 0, 0, 0, 4])
    mask = torch.arange(4) < lengths[:, None]
    reward = torch.randn(9, generator=generator, dtype=torch.float64)
    batch = batch_of(target, behavior, mask=mask, reward=reward)
    return batch.replaced(group=torch.tensor([5, 5, 5, 2, 2, 2, 9, 9, 9]))


def slopes(batch, advantage, **how):
    """Minus the gradient of the loss in the log-probs, one group after another."""
    found = []
    for rows in (range(3), range(3, 6), range(6, 9)):
        part = batch.select(list(rows))
        logp = part.logp_target.clone().requires_grad_(True)
        policy_loss(logp, part, advantage=advantage[list(rows)], **how).backward()
        found.append(-logp.grad)
    return torch.cat(found)


@pytest.mark.parametrize("normalizer", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("denominator", ["original", "kept"])
@pytest.mark.parametrize(("rule", "params"), [*RULES, ("ppo_clip", {}), ("gspo", {"eps_low": 0.5, "eps_high": 0.5})])
def test_coefficients_are_the_gradient_of_the_loss(groups, rule, params, denominator, normalizer):
    how = {"rule": rule, "denominator": denominator, "normalizer": normalizer, **params}
    found = group_coefficients(groups, "leave_one_out", **how)
    assert found[~groups.mask].eq(0).all()
    expected = slopes(groups, group_advantage(groups, "leave_one_out"), **how)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("baseline", WEIGHTED_BASELINES)
def test_weighted_baselines_reach_the_coefficients(groups, baseline):
    found = group_coefficients(groups, baseline, rule="sequence_product", normalizer="constant", constant=3.0)
    expected = slopes(
        groups, weighted_group_advantage(groups, baseline), rule="sequence_product", normalizer="constant", constant=3.0
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-16)


def test_a_worked_group():
    logp = torch.full((2, 2), -0.5, dtype=torch.float64)
    batch = batch_of(logp, logp, mask=torch.tensor([[True, True], [True, False]]), reward=[3.0, 1.0])
    batch = batch.replaced(group=torch.tensor([0, 0]))  # advantages 1 and -1, lengths 2 and 1
    assert group_coefficients(batch).tolist() == [[1 / 3, 1 / 3], [-1 / 3, 0]]
    assert group_coefficients(batch, normalizer="sequence_mean").tolist() == [[1 / 4, 1 / 4], [-1 / 2, 0]]
    assert group_coefficients(batch, normalizer="constant").tolist() == [[1 / 4, 1 / 4], [-1 / 4, 0]]
    assert group_coefficients(batch, "group_mean", "std", ddof=1)[0, 0] == pytest.approx(0.5**0.5 / 3, rel=1e-14)


def test_an_infinite_weight_without_advantage_is_gone():
    target, behavior = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([[-1e4], [0.0]], dtype=torch.float64)
    batch = batch_of(target, behavior, reward=[1.0, 1.0]).replaced(group=torch.tensor([0, 0]))
    assert group_coefficients(batch, rule="exact").tolist() == [[0.0], [0.0]]


def test_gradients_need_not_be_on(groups):
    with torch.no_grad():
        assert group_coefficients(groups).ne(0).any()


def test_refusals(groups):
    with pytest.raises(InputError, match="equal size"):
        group_coefficients(groups.replaced(group=torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])))
    with pytest.raises(InputError, match="next to each other"):
        group_coefficients(groups.replaced(group=torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0])))
    with pytest.raises(InputError, match="scale='none'"):
        group_coefficients(groups, "weighted_mean", "std")


def test_unknown_words(groups, untyped):
    for wrong in ({"normalizer": "mean"}, {"denominator": "all"}, {"baseline": "median"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            group_coefficients(groups, **wrong)
