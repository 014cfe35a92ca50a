"""BR-18: a response that was dropped trains at full strength.

https://github.com/huggingface/trl/pull/6095: masking inside a geometric mean leaves exp(0 / 1) = 1, the weight of an
on-policy response. Its advantage is 2 here, so that the loss is -2 instead of 0.
"""

import pytest
import torch

from testbed.weighting.rules import RULES
from tests.museum.specimens import REDUCTIONS, loss_and_gradient, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

LOG_RATIO = [[0.2, -0.1, 0.3], [0.5, 0.4, -0.6]]
GATED = [name for name, rule in RULES.items() if {"low", "high"} <= set(rule.parameters) and rule.home == "mask"] + [
    "seq_mis"
]


def two_responses(dropped):
    batch = batch_with_ratios(LOG_RATIO, reward=[1.0, 2.0])
    mask = torch.tensor([[True] * 3, [not dropped] * 3])
    return batch.replaced(mask=mask)


def test_wrong_recipe_gives_an_empty_mean_weight_one():
    log_ratio, mask, advantage = torch.tensor([0.5, 0.4, -0.6]), torch.zeros(3), 2.0
    weight = torch.exp((log_ratio * mask).sum() / mask.sum().clamp(min=1))
    assert float(-weight * advantage) == -2.0


def test_ours_gives_it_weight_zero():
    alone = batch_with_ratios([[0.5, 0.4, -0.6]], mask=torch.zeros(1, 3, dtype=torch.bool), reward=[2.0])
    for rule in ("geo_mask", "gspo", "sequence_product"):
        loss, gradient = loss_and_gradient(alone, rule)
        assert float(loss) == 0.0 and not gradient.any() and not weights(rule, alone).value.any()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_a_masked_response_is_as_if_absent(rule, granularity):
    both = two_responses(dropped=True)
    w = weights(rule, both, granularity)
    assert not w.value[1].any() and not w.raw[1].any() and not w.gate[1].any()
    for reduction in REDUCTIONS:
        loss, gradient = loss_and_gradient(both, rule, granularity, reduction)
        want, slope = loss_and_gradient(both.select([0]), rule, granularity, reduction)
        share = 0.5 if reduction[0] == "constant" else 1.0  # a constant counts positions, by definition
        torch.testing.assert_close(loss, want * share, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient[:1], slope * share, rtol=1e-12, atol=0)
        assert not gradient[1].any()


@pytest.mark.parametrize("reduction", REDUCTIONS, ids="-".join)
@pytest.mark.parametrize("rule", GATED)
def test_a_rejected_response_contributes_nothing(rule, reduction):
    whole = batch_with_ratios([[0.0, 0.0, 0.0], [4.0, 4.0, 4.0]], reward=[1.0, 2.0])
    params = {"cap" if "cap" in RULES[rule].parameters else "high": 2.0, "low": 0.5}
    w = weights(rule, whole, **params)
    assert w.gate.tolist() == [[True] * 3, [False] * 3]
    _, gradient = loss_and_gradient(whole, rule, None, reduction, **params)
    assert gradient[0].all() and not gradient[1].any()
