"""L8: a two-sided clamp called truncated importance sampling.

torchforge and OpenRLHF turn a ratio of .2 into .5. Truncation caps from above and never raises a weight; raising small
weights costs accuracy, is another operator with another bias, and has another name.
"""

import math

import pytest
import torch

from testbed import InputError, weigh
from testbed.weighting.rules import RULES
from testbed.weighting.truncate import clamp, truncate
from tests.museum.specimens import exact_world, last_real, ragged, target_probs, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

NEVER_RAISES = ("exact", "tis", "mis", "icepop", "seq_tis", "seq_mis", "spire")


def test_wrong_recipe_raises_what_is_small():
    assert min(max(0.2, 0.5), 5.0) == 0.5


def test_ours_has_two_names():
    small = batch_with_ratios([[math.log(0.2), math.log(7.0)]])
    assert weights("tis", small, cap=5.0).value.tolist() == [[pytest.approx(0.2), 5.0]]
    assert weights("band", small, low=0.5, high=5.0).value.tolist() == [[0.5, 5.0]]
    with pytest.raises(InputError, match="no such parameter"):
        weigh("tis", small, low=0.5)
    assert "never raised" in RULES["tis"].summary and "raises small ratios" in RULES["band"].summary


@pytest.mark.parametrize("cap", [0.1, 1.0, 2.0, math.inf])
def test_truncation_is_a_minimum(cap):
    log_ratio = torch.linspace(-5, 5, 101, dtype=torch.float64)[None]
    assert (truncate(log_ratio, cap) <= log_ratio.exp()).all()
    raised = clamp(log_ratio, min(0.05, cap), cap) > log_ratio.exp()
    assert torch.equal(raised, log_ratio < math.log(min(0.05, cap)))


@pytest.mark.parametrize(("rule", "granularity"), [pair for pair in PAIRS if pair[0] in NEVER_RAISES])
def test_no_rule_of_that_family_raises_a_weight(rule, granularity):
    far = batch_with_ratios([[-4.0, -3.0, 3.0], [5.0, 0.1, -0.2], [-0.5, -0.5, -0.5]], segment=[[0, 0, 1]] * 3)
    for batch in (ragged(), far):
        w = weights(rule, batch, granularity)
        assert (w.value <= w.raw).all()


@pytest.mark.parametrize("granularity", ["prefix", "segment_prefix", "sequence_product"])
def test_the_two_have_different_biases(granularity):
    """Truncation can only lose mass; a clamp also adds: E w - 1 = E(low - W)+ - E(W - high)+, exactly."""
    law, _ = exact_world()
    product = last_real(weights("exact", law.batch, granularity).raw, law.batch)
    low, high = 0.8, 1.5
    excess, lack = (law.expect(x.clamp(min=0)) for x in (product - high, low - product))
    truncated = last_real(weights("tis", law.batch, granularity, cap=high).value, law.batch)
    clamped = last_real(weights("band", law.batch, granularity, low=low, high=high).value, law.batch)
    assert float(law.expect(truncated)) == pytest.approx(float(1 - excess), rel=1e-10)
    assert float(law.expect(clamped)) == pytest.approx(float(1 + lack - excess), rel=1e-10)
    assert float(lack) > 1e-2 < float(excess) and float(target_probs(law).sum()) == pytest.approx(1.0, rel=1e-10)
