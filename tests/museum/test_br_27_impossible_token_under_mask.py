"""BR-27: -inf at a filtered token survives multiplication by the mask.

https://github.com/NVIDIA-NeMo/RL/pull/2053 and https://github.com/NVIDIA-NeMo/RL/pull/4154: the trainer gives the token
probability 0, the rollout drew it at log-prob -1, and the mask is tightened to 0 afterwards: inf * 0 = NaN in every
metric of the response.
"""

import math

import pytest
import torch

from testbed import log_ratios, value_terms
from testbed.weighting.rule import GRANULARITIES
from tests.museum.specimens import REDUCTIONS, loss_and_gradient, weights
from tests.weighting.worlds import PAIRS, batch_of

TARGET, BEHAVIOR = [[-0.5, -math.inf, -0.2]], [[-0.7, -1.0, -0.2]]
TIGHT = torch.tensor([[True, False, True]])


def drawn(mask=None, proximal=BEHAVIOR):
    return batch_of(TARGET, BEHAVIOR, mask=mask, proximal=proximal, segment=[[0, 0, 1]], reward=[1.0])


def test_wrong_recipe_multiplies_infinity_by_the_mask():
    gap = torch.tensor(TARGET) - torch.tensor(BEHAVIOR)
    assert ((gap * TIGHT).sum(1) / TIGHT.sum(1)).isnan().all()


def test_ours_selects_and_counts():
    kept = drawn()
    assert kept.facts.support_mismatches == 1
    assert float(weights("sequence_product", kept).value.abs().max()) == 0.0  # the target cannot have written it
    tight = kept.replaced(mask=TIGHT)
    assert tight.facts.support_mismatches == 0  # and what goes with the tightened mask is counted anew
    assert torch.equal(weights("tis", tight).gate, TIGHT)
    expected = math.exp(0.2)
    assert float(weights("sequence_product", tight).value[0, 0]) == pytest.approx(expected, rel=1e-12)
    assert value_terms(tight).tolist() == pytest.approx([expected], rel=1e-12)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_granularity_makes_nan_of_it(granularity):
    for batch in (drawn(), drawn(TIGHT), drawn(proximal=TARGET)):
        assert not log_ratios(batch, granularity).isnan().any()
        assert not log_ratios(batch, granularity, numerator="target", denominator="proximal").isnan().any()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_in_every_reduction(rule, granularity, sign):
    advantage = torch.tensor([sign])
    for batch in (drawn(), drawn(TIGHT)):
        w = weights(rule, batch, granularity, advantage)
        assert float(w.value[0, 1]) == 0.0 and w.value.isfinite().all() and not w.raw.isnan().any()
        for reduction in REDUCTIONS:
            loss, gradient = loss_and_gradient(batch, rule, granularity, reduction, advantage)
            assert loss.isfinite() and gradient.isfinite().all() and float(gradient[0, 1]) == 0.0
    without = drawn().replaced(logp_target=torch.where(TIGHT, drawn().logp_target, 0.0), mask=TIGHT)
    tight, plain = weights(rule, drawn(TIGHT), granularity, advantage), weights(rule, without, granularity, advantage)
    assert torch.equal(tight.value, plain.value) and torch.equal(tight.gate, plain.gate)
