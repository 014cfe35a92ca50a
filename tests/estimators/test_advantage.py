"""Group advantages: every baseline and scale, groups of one, groups without spread, rows without tokens."""

import math

import pytest
import torch

from testbed import InputError, group_advantage
from tests.weighting.worlds import batch_of


def batch(reward, group, empty=()):
    n = len(reward)
    mask = torch.ones(n, 2, dtype=torch.bool)
    mask[list(empty)] = False
    base = batch_of(torch.full((n, 2), -1.0), torch.full((n, 2), -1.0), mask=mask, reward=reward)
    return base.replaced(group=torch.tensor(group))


def test_definitions():
    b = batch([1.0, 0.0, 0.5, 2.0, 4.0], [3, 3, 3, 8, 8])
    mean, std = 0.5, math.sqrt(0.5 / 3)
    assert group_advantage(b, "none").tolist() == [1.0, 0.0, 0.5, 2.0, 4.0]
    assert group_advantage(b, "group_mean").tolist() == [0.5, -0.5, 0.0, -1.0, 1.0]
    loo = [1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5, 2.0 - 4.0, 4.0 - 2.0]
    torch.testing.assert_close(group_advantage(b, "leave_one_out").tolist(), loo, rtol=1e-14, atol=1e-15)
    scaled = group_advantage(b, "group_mean", "std")
    torch.testing.assert_close(scaled[:3].tolist(), [(r - mean) / std for r in (1.0, 0.0, 0.5)], rtol=1e-12, atol=1e-15)


def test_population_and_sample_deviation():
    """BR-49."""
    b = batch([1.0, 0.0], [0, 0])
    assert group_advantage(b, "group_mean", "std", ddof=0).tolist() == pytest.approx([1.0, -1.0])
    assert group_advantage(b, "group_mean", "std", ddof=1).tolist() == pytest.approx([0.7071068, -0.7071068])
    assert group_advantage(b, "group_mean").tolist() == [0.5, -0.5]


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_group_of_one(baseline, scale):
    """BR-46: 0, or an error when strict."""
    b = batch([0.7, 1.0, 0.0], [5, 6, 6])
    assert group_advantage(b, baseline, scale)[0] == 0.0
    with pytest.raises(InputError, match="1 groups of one, first prompt 5"):
        group_advantage(b, baseline, scale, strict=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_without_spread_are_silent(dtype):
    b = batch([0.1, 0.1, 0.1, 1.0, 0.0], [0, 0, 0, 1, 1])
    b = b.replaced(reward=b.reward.to(dtype))
    advantage = group_advantage(b, "group_mean", "std")
    assert advantage[:3].tolist() == [0.0, 0.0, 0.0]
    assert advantage[3] > 0.99


def test_rows_without_tokens_are_not_counted():
    with_empty = batch([1.0, 0.0, 1.0], [0, 0, 0], empty=[2])
    assert group_advantage(with_empty, "group_mean").tolist() == [0.5, -0.5, 0.0]


def test_order_and_labels_do_not_matter(generator):
    reward = torch.randn(6, generator=generator, dtype=torch.float64)
    group = [2, 0, 2, 1, 0, 1]
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    b = batch(reward.tolist(), group)
    for baseline in ("none", "group_mean", "leave_one_out"):
        for scale in ("none", "std"):
            a = group_advantage(b, baseline, scale)
            torch.testing.assert_close(group_advantage(b.select(order), baseline, scale), a[order], rtol=1e-13, atol=0)
            relabeled = b.replaced(group=torch.tensor([70, 11, 70, 99, 11, 99]))
            torch.testing.assert_close(group_advantage(relabeled, baseline, scale), a, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("kw", "message"), [({"baseline": "mean"}, "`baseline`"), ({"scale": "max"}, "`scale`"), ({"ddof": 2}, "`ddof`")]
)
@pytest.mark.usefixtures("untyped")
def test_unknown_options(kw, message):
    with pytest.raises(InputError, match=message):
        group_advantage(batch([1.0, 0.0], [0, 0]), **kw)
