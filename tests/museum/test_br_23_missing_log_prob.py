"""BR-23: a missing behavior log-prob is filled with 0.0.

https://github.com/vllm-project/vime/pull/70 and https://github.com/rllm-org/rllm/issues/816: with log pi = -2.3 the token
gets a ratio of .1003, although nothing is known about it. Missing is NaN, what to do about it has a name, and is counted.
"""

import math

import pytest
import torch

from testbed import InputError
from testbed.core.missing_log_probs import resolve_missing
from tests.museum.specimens import LOG_PROBS, fired, ragged, weights
from tests.weighting.worlds import PAIRS, batch_of, same

NAN = math.nan


def test_wrong_recipe_fills_with_zero():
    assert math.exp(-2.3 - 0.0) == pytest.approx(0.1003, abs=5e-5)


@pytest.mark.parametrize(
    ("policy", "mask", "ratios"),
    [
        ("drop_token", [[True, False], [True, True]], [[math.exp(-0.3), 0.0], [1.0, 1.0]]),
        ("drop_response", [[False, False], [True, True]], [[0.0, 0.0], [1.0, 1.0]]),
        ("unit_ratio", [[True, True], [True, True]], [[math.exp(-0.3), 1.0], [1.0, 1.0]]),
    ],
)
def test_ours_does_what_it_was_told_and_counts(policy, mask, ratios):
    target = torch.tensor([[-0.8, -2.3], [-1.0, -1.0]], dtype=torch.float64)
    behavior = torch.tensor([[-0.5, NAN], [-1.0, -1.0]], dtype=torch.float64)
    found = resolve_missing(behavior, target, torch.ones(2, 2, dtype=torch.bool), policy)
    assert (found.missing_tokens, found.missing_responses) == (1, 1)
    assert found.mask.tolist() == mask
    batch = batch_of(target, found.logp_behavior, mask=found.mask)
    torch.testing.assert_close(weights("exact", batch).raw, torch.tensor(ratios, dtype=torch.float64))


def test_ours_refuses_unless_told():
    behavior, mask = torch.tensor([[-1.0, NAN]]), torch.tensor([[True, True]])
    with pytest.raises(InputError, match=r"1 missing in 1 responses, first at \(0, 1\).*drop_response"):
        resolve_missing(behavior, behavior, mask)
    for name in LOG_PROBS:
        with pytest.raises(InputError, match=rf"`{name}`.*a missing log-prob is not 0"):
            ragged().replaced(**{name: torch.full((4, 4), NAN, dtype=torch.float64)})
    with pytest.raises(InputError, match="unit ratio needs a finite target"):
        resolve_missing(behavior, behavior, mask, "unit_ratio")
    assert resolve_missing(behavior, behavior, torch.tensor([[True, False]]))[2:] == (0, 0)  # padding is not missing


def test_ours_recognizes_what_was_filled_before_it_came():
    filled = batch_of([[-2.3, -1.0], [-1.0, -0.5]], [[0.0, -1.1], [-1.2, -0.6]])
    assert "filled_with_zero" in fired(filled)
    assert "filled_with_zero" not in fired(batch_of([[-2.3, -1.0]], [[-2.0, -1.1]]))


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_after_every_resolution(rule, granularity):
    whole = ragged()
    behavior = whole.logp_behavior.clone()
    behavior[3, 1] = NAN

    def resolved(policy):
        found = resolve_missing(behavior, whole.logp_target, whole.mask, policy)
        return whole.replaced(logp_behavior=found.logp_behavior, mask=found.mask, segment=whole.segment)

    without = whole.mask.clone()
    without[3, 1] = False
    assert same(
        weights(rule, resolved("drop_token"), granularity), weights(rule, whole.replaced(mask=without), granularity)
    )
    left = torch.tensor([0, 1, 2])
    w = weights(rule, resolved("drop_response"), granularity)
    assert not w.value[3].any() and torch.equal(w.value[left], weights(rule, whole.select(left), granularity).value)
    unit = weights("exact", resolved("unit_ratio"))
    assert float(unit.value[3, 1]) == 1.0
    assert not weights(rule, resolved("unit_ratio"), granularity).value.isnan().any()
