"""BR-06: a divergence estimate in the loss explodes, and the model ends up printing one token.

https://github.com/verl-project/verl/issues/891 and https://github.com/verl-project/verl/issues/751: the exponential of an
unbounded gap to the reference, 49 nats here, in a loss of float32.
"""

import itertools

import pytest
import torch

from testbed.stats.divergence import kl_bounded

DIRECTIONS = ("behavior_to_target", "target_to_behavior")


def test_wrong_recipe_exponentiates_any_gap():
    gap = torch.tensor(49.0, requires_grad=True)
    value = torch.exp(gap) - gap - 1
    value.backward()
    assert value.item() == pytest.approx(1.9e21, rel=0.01) and gap.grad.item() == pytest.approx(1.9e21, rel=0.01)


def test_ours_bounds_input_and_output_and_reports_the_share():
    gaps = torch.tensor([49.0, 0.1, -0.3, 5.0], requires_grad=True)
    found = kl_bounded(gaps, input_bound=20.0, output_bound=10.0)
    found.value.sum().backward()
    assert float(found.value.detach().max()) == 10.0 and found.share_bounded == 0.5  # 49, and e^5 - 6 > 10
    assert gaps.grad[0] == 0.0 and float(gaps.grad.abs().max()) < 1.0


@pytest.mark.parametrize(
    ("estimator", "direction", "gap"),
    list(itertools.product(("k1", "k2", "k3"), DIRECTIONS, (21.0, 49.0, 89.0, 1e4, -21.0, -49.0, -89.0, -1e4))),
)
def test_every_estimate_is_bounded_both_ways(estimator, direction, gap):
    gaps = torch.tensor([gap, 0.0], requires_grad=True)
    found = kl_bounded(gaps, estimator=estimator, direction=direction)
    found.value.sum().backward()
    assert float(found.value.detach().abs().max()) <= 10.0
    assert found.share_bounded == 0.5
    assert gaps.grad[0] == 0.0 and gaps.grad.isfinite().all()


def test_padding_counts_in_neither_share_nor_value(poison):
    mask = torch.tensor([True, False])
    found = kl_bounded(torch.tensor([0.5, poison]), mask)
    assert found.share_bounded == 0.0 and float(found.value[1]) == 0.0
