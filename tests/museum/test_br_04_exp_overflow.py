"""BR-04: the exponential of a stale token overflows, and poisons the loss even where the token is masked.

https://github.com/PrimeIntellect-ai/prime-rl/issues/2972: exp comes before the mask, so a masked token is 0 * inf = NaN.
Here in float32: log pi = -2, log mu = -91, a log ratio of 89 nats, beyond the largest float.
"""

import math

import pytest
import torch

from tests.museum.specimens import REDUCTIONS, loss_and_gradient, weights
from tests.weighting.worlds import PAIRS, batch_of

TARGET, BEHAVIOR = [[-2.0, -1.0]], [[-91.0, -1.0]]


def stale(masked):
    mask = torch.tensor([[not masked, True]])
    return batch_of(TARGET, BEHAVIOR, mask=mask, proximal=BEHAVIOR, dtype=torch.float32)


def test_wrong_recipe_multiplies_by_the_mask_afterwards():
    logp = torch.tensor(TARGET, requires_grad=True)
    ratio = torch.exp(logp - torch.tensor(BEHAVIOR))
    loss = (ratio * torch.tensor([[0.0, 1.0]])).sum()
    assert ratio[0, 0].isinf() and loss.isnan()


def test_ours_selects_before_it_exponentiates():
    loss, gradient = loss_and_gradient(stale(masked=True), "tis")
    assert float(loss) == pytest.approx(1.0) and float(gradient[0, 0]) == 0.0
    kept = weights("tis", stale(masked=False), cap=2.0)
    assert float(kept.value[0, 0]) == 2.0 and kept.saturated == 1
    loss, gradient = loss_and_gradient(stale(masked=False), "tis", cap=2.0)
    assert loss.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_is_poisoned_by_a_masked_token(rule, granularity):
    normal = batch_of([[0.0, -1.0]], [[0.0, -1.0]], mask=[[False, True]], dtype=torch.float32)
    for reduction in REDUCTIONS:
        want = loss_and_gradient(normal, rule, granularity, reduction)
        found = loss_and_gradient(stale(masked=True), rule, granularity, reduction)
        assert torch.equal(found[0], want[0]) and torch.equal(found[1], want[1])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_a_real_token_saturates_and_is_counted(rule, granularity, advantage):
    alone = batch_of([[-2.0]], [[-91.0]], dtype=torch.float32, reward=[advantage])
    w = weights(rule, alone, granularity)
    assert w.saturated == 1 and math.isinf(float(w.raw[0, 0]))
    loss, gradient = loss_and_gradient(alone, rule, granularity)
    assert not loss.isnan() and not gradient.isnan().any()
