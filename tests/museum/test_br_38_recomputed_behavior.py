"""BR-38: the behavior's log-probs are recomputed with the current weights.

https://github.com/areal-project/AReaL/issues/201, https://github.com/radixark/miles/pull/1829,
https://github.com/alibaba/ROLL/issues/242 and https://github.com/NovaSky-AI/SkyRL/pull/1859: the ratio is 1 by construction,
the clip never acts, the correction is inert. Drawn at log-prob -1.5, now -1.0, "old" recomputed as -1.0: 1 instead of 1.6487.
"""

import dataclasses
import math

import pytest
import torch

from testbed import InputError, SegmentedBatch
from testbed.rollout.staleness import staleness
from tests.museum.specimens import fired, ragged, weights
from tests.weighting.worlds import PAIRS, batch_of


def test_wrong_recipe_divides_current_by_current():
    behavior, current = -1.5, -1.0
    recomputed = current
    assert math.exp(current - recomputed) == 1.0
    assert math.exp(current - behavior) == pytest.approx(1.648721, abs=5e-7)


def test_ours_keeps_what_was_recorded_beside_what_was_recomputed():
    batch = batch_of([[-1.0]], [[-1.5]], proximal=[[-1.0]])  # the recomputed one has a field of its own
    for rule in ("exact", "decoupled_ppo"):
        assert float(weights(rule, batch).raw[0, 0]) == pytest.approx(1.648721, abs=5e-7)


def test_ours_cannot_be_made_without_behavior_log_probs():
    fields = {f.name: getattr(ragged(), f.name) for f in dataclasses.fields(SegmentedBatch) if f.init}
    assert SegmentedBatch(**fields).batch_size == 4
    del fields["logp_behavior"]
    with pytest.raises(TypeError, match="logp_behavior"):
        SegmentedBatch(**fields)
    with pytest.raises(InputError, match="`staleness` needs `version`"):
        staleness(batch_of([[-1.0]], [[-1.5]]), 0)


def test_ours_warns_that_the_ratio_has_no_variance():
    honest = batch_of([[-1.0, -0.7, -2.0]], [[-1.5, -0.6, -1.9]], proximal=[[-1.4, -0.6, -2.0]])
    assert "zero_variance" not in fired(honest)
    inert = honest.replaced(logp_behavior=honest.logp_target)
    assert "recomputed" in fired(inert)["zero_variance"]
    assert "zero_variance" in fired(honest.replaced(logp_proximal=honest.logp_behavior))


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_takes_its_ratio_from_a_recomputed_anchor(rule, granularity):
    batch = ragged()
    raw = weights(rule, batch, granularity).raw
    for anchor in (batch.logp_target, batch.logp_behavior, batch.logp_target - 0.3):
        assert torch.equal(weights(rule, batch.replaced(logp_proximal=anchor), granularity).raw, raw)


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_ratio_is_one_on_recomputed_log_probs(rule, granularity):
    """The symptom, for all of them: no rule has anything to act on, and the diagnosis is what tells."""
    batch = ragged()
    inert = batch.replaced(logp_behavior=batch.logp_target, logp_proximal=batch.logp_target)
    w = weights(rule, inert, granularity)
    assert not w.acted.any() and torch.equal(w.raw, inert.mask.to(w.raw.dtype))
    assert weights(rule, batch, granularity).raw.ne(w.raw).any()
