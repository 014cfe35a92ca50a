"""BR-09: rejected tokens stay in the denominator.

https://github.com/THUDM/slime/pull/657 and https://github.com/verl-project/verl/pull/3915: rejection is done by zeroing
weights, and the mean then divides by what was rejected as well. Two of five tokens are kept here. Which count is right
is BR-10; what matters here is that it is asked for by name.
"""

import pytest
import torch

from tests.museum.specimens import NORMALIZERS, contributing, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS, SURROGATES, batch_with_ratios

LOG_RATIO = [0.1, -1.5, 0.8, -10.0, 0.3]
BAND = {"low": 0.5, "high": 2.0}
ORIGINAL, KEPT = 0.491006, 1.227515


def five_tokens():
    batch = batch_with_ratios([LOG_RATIO])
    return batch.replaced(logp_target=batch.logp_target - 1, logp_behavior=batch.logp_behavior - 1)


def test_wrong_recipe_zeroes_and_averages_over_all():
    ratio = torch.tensor(LOG_RATIO, dtype=torch.float64).exp()
    keep = (ratio >= 0.5) & (ratio <= 2.0)
    assert keep.tolist() == [True, False, False, False, True]
    mean_over_kept_was_meant = (ratio * keep).mean()
    assert float(mean_over_kept_was_meant) == pytest.approx(ORIGINAL, abs=5e-7)


@pytest.mark.parametrize(("denominator", "expected"), [("original", ORIGINAL), ("kept", KEPT)])
@pytest.mark.parametrize("normalizer", ["token_mean", "sequence_mean"])
def test_ours_counts_what_it_was_asked_to_count(normalizer, denominator, expected):
    batch = five_tokens()
    per_token_loss_one = contributing(batch, torch.ones(1, 5))
    loss, _ = loss_and_gradient(batch, "icepop", None, (normalizer, denominator), per_token_loss_one, **BAND)
    assert float(loss) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_every_rule_counts_its_gate_and_nothing_else(rule, granularity, normalizer):
    batch = ragged()
    gate = weights(rule, batch, granularity).gate
    counted = batch.mask if rule in SURROGATES else gate  # a clip rejects nothing: its tokens keep their place
    _, original = loss_and_gradient(batch, rule, granularity, (normalizer, "original"))
    _, kept = loss_and_gradient(batch, rule, granularity, (normalizer, "kept"))
    if normalizer == "constant":
        share = torch.ones(4, 1)
    elif normalizer == "token_mean":
        share = batch.mask.sum() / counted.sum().clamp(min=1) * torch.ones(4, 1)
    else:
        share = (
            (batch.lengths / counted.sum(1).clamp(min=1))[:, None]
            * batch.mask.any(1).sum()
            / counted.any(1).sum().clamp(min=1)
        )
    torch.testing.assert_close(kept, original * share, rtol=1e-6, atol=0)
    assert not kept[~gate].any() and not original[~gate].any()
