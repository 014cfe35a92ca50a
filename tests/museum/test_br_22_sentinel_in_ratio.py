"""BR-22: a sentinel value leaks into a ratio.

https://github.com/yaof20/Flash-RL/issues/19: masked tokens are stored as log-prob 1.0 on one side and 0 on the other, and
a ratio of e^-1 = .3679 enters the statistics. A log-prob above 0 is refused on a real token and erased in padding.
"""

import math

import pytest
import torch

from testbed import InputError
from tests.museum.specimens import LOG_PROBS, MASK, ragged, weights
from tests.weighting.worlds import PAIRS, same


def test_wrong_recipe_subtracts_two_sentinels():
    assert math.exp(0.0 - 1.0) == pytest.approx(0.3679, abs=5e-5)


def test_ours_refuses_or_erases_it():
    batch = ragged()
    on_padding = torch.where(MASK, batch.logp_behavior, 1.0)
    cleaned = batch.replaced(logp_behavior=on_padding)
    assert not cleaned.logp_behavior[~MASK].any() and same(weights("tis", cleaned), weights("tis", batch))
    on_a_token = batch.logp_behavior.clone()
    on_a_token[3, 2] = 1.0
    with pytest.raises(InputError, match=r"`logp_behavior` must be log-probabilities <= 0.*first 1 at \(3, 2\)"):
        batch.replaced(logp_behavior=on_a_token)


@pytest.mark.parametrize("value", [1.1e-6, 1e-3, 1.0, 999.0, math.inf])
@pytest.mark.parametrize("name", LOG_PROBS)
def test_every_positive_log_prob_is_refused(name, value):
    batch = ragged()
    broken = getattr(batch, name).clone()
    broken[0, 1] = value
    with pytest.raises(InputError, match=rf"`{name}`.*1 above 1e-6.*\(0, 1\)"):
        batch.replaced(**{name: broken})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOG_PROBS)
def test_overshoot_by_rounding_is_clipped_and_counted(name, dtype):
    batch = ragged(dtype=dtype)
    rounded = getattr(batch, name).clone()
    rounded[0, 0], rounded[3, 1] = 9e-7, 1e-9
    repaired = batch.replaced(**{name: rounded})
    assert repaired.facts.clipped == {name: 2}
    assert float(getattr(repaired, name).max()) == 0.0


@pytest.mark.parametrize("sentinel", [1.0, -1.0, -100.0, 999.0])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_sees_a_sentinel_in_padding(rule, granularity, sentinel):
    clean, batch = weights(rule, ragged(), granularity), ragged()
    for name in LOG_PROBS:
        batch = batch.replaced(**{name: torch.where(MASK, getattr(batch, name), sentinel)})
    assert same(weights(rule, batch, granularity), clean)
