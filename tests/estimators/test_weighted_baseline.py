"""Weighted group baselines: the four formulas, groups in any order, precision, groups of one, rows without tokens."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.estimators.advantage import group_advantage
from testbed.estimators.weighted_baseline import WEIGHTED_BASELINES, weighted_group_advantage
from tests.weighting.worlds import batch_of


def batch(weight, reward, group):
    """One token per response, with these ratios."""
    w = torch.tensor(weight, dtype=torch.float64)
    target = w.log() - w.log().clamp(min=0)
    behavior = -w.log().clamp(min=0)
    return batch_of(target[:, None], behavior[:, None], reward=reward).replaced(group=torch.tensor(group))


def test_formulas_one_by_one():
    weight, reward = [2.0, 0.5, 1.0], [1.0, -2.0, 3.0]
    b = batch(weight, reward, [4, 4, 4])
    pairs = list(zip(weight, reward, strict=True))
    total, mass = sum(w * r for w, r in pairs), sum(weight)
    expected = {
        "weighted_mean": [r - total / 3 for r in reward],
        "self_normalized": [r - total / mass for r in reward],
        "weighted_leave_one_out": [r - (total - w * r) / 2 for w, r in pairs],
        "self_normalized_leave_one_out": [r - (total - w * r) / (mass - w) for w, r in pairs],
    }
    assert set(expected) == set(WEIGHTED_BASELINES)
    for name, values in expected.items():
        assert weighted_group_advantage(b, name).tolist() == pytest.approx(values, rel=1e-13), name


@pytest.mark.parametrize("name", WEIGHTED_BASELINES)
def test_groups_do_not_see_each_other(name):
    weight, reward = [2.0, 0.5, 1.0, 3.0, 0.25], [1.0, -2.0, 3.0, 0.5, 2.0]
    mixed = weighted_group_advantage(batch(weight, reward, [7, 1, 7, 1, 7]), name)
    for rows in ([0, 2, 4], [1, 3]):
        alone = batch([weight[r] for r in rows], [reward[r] for r in rows], [0] * len(rows))
        torch.testing.assert_close(mixed[rows], weighted_group_advantage(alone, name), rtol=1e-14, atol=0)


def test_without_weights_they_are_the_plain_baselines():
    b = batch([1.0] * 5, [1.0, -2.0, 3.0, 0.5, 2.0], [7, 1, 7, 1, 7])
    for name in WEIGHTED_BASELINES:
        plain = group_advantage(b, "leave_one_out" if name.endswith("leave_one_out") else "group_mean")
        torch.testing.assert_close(weighted_group_advantage(b, name), plain, rtol=1e-14, atol=1e-15)


def test_small_weights_survive_beside_a_large_one():
    b = batch([1e20, 1.0, 3.0], [1.0, 8.0, 4.0], [0, 0, 0])
    assert float(weighted_group_advantage(b, "self_normalized_leave_one_out")[0]) == pytest.approx(1 - 5, rel=1e-12)
    assert float(weighted_group_advantage(b, "weighted_leave_one_out")[0]) == pytest.approx(1 - 10, rel=1e-12)


def test_a_response_alone():
    b = batch([2.0, 1.0, 1.0], [3.0, 1.0, 0.0], [5, 6, 6])
    found = {name: float(weighted_group_advantage(b, name)[0]) for name in WEIGHTED_BASELINES}
    assert found == pytest.approx(
        {
            "weighted_mean": -3.0,
            "self_normalized": 0.0,
            "weighted_leave_one_out": 0.0,
            "self_normalized_leave_one_out": 0.0,
        }
    )


def test_weights_of_zero_leave_no_baseline():
    zero = torch.full((2, 1), -torch.inf, dtype=torch.float64)
    b = batch_of(zero, torch.zeros(2, 1, dtype=torch.float64), reward=[1.0, 3.0]).replaced(group=torch.tensor([0, 0]))
    for name in WEIGHTED_BASELINES:
        assert weighted_group_advantage(b, name).tolist() == [1.0, 3.0]


def test_rows_without_tokens_are_not_counted():
    half = torch.full((3, 2), -1.0, dtype=torch.float64)
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    b = batch_of(half, half, mask=mask, reward=[1.0, 50.0, 3.0]).replaced(group=torch.tensor([0, 0, 0]))
    for name in WEIGHTED_BASELINES:
        spread = 2.0 if name.endswith("leave_one_out") else 1.0
        assert weighted_group_advantage(b, name).tolist() == pytest.approx([-spread, 0.0, spread])


def test_refusal_and_nothing():
    b = batch([1.0, 1.0], [1.0, 0.0], [0, 0])
    with pytest.raises(InputError, match="weighted_mean, self_normalized"):
        weighted_group_advantage(b, "mean")
    assert weighted_group_advantage(b.select(torch.zeros(2, dtype=torch.bool))).shape == (0,)
