"""L7: a pad is counted, and the smallest ratio is 0.

SkyRL reports a minimum of 0.0 and a standard deviation of 1.99 because padding is among the ratios: one real token of
ratio 3.98 beside one pad does that. Minimum, spread and quantiles are over real tokens only.
"""

import json

import pytest
import torch

from testbed.diagnosis.report import diagnose
from testbed.stats.weight_statistics import chi2, ess, mean_weight, renyi2, second_moment
from tests.museum.specimens import weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

LOG_RATIO = [[0.3, -0.2, 0.5], [0.1, -0.4, 0.2], [-0.6, 0.7, 0.1]]


def padded(columns, fill=0.0):
    """Return a batch of three responses of two or three tokens, with this many columns of padding after them."""
    wide = torch.full((3, 3 + columns), fill, dtype=torch.float64)
    wide[:, :3] = torch.tensor(LOG_RATIO)
    mask = torch.zeros(3, 3 + columns, dtype=torch.bool)
    mask[:, :3] = True
    mask[1, 2] = False
    batch = batch_with_ratios(torch.where(mask, wide, 0.0), mask=mask, reward=[1.0, 0.0, -1.0])
    return batch.replaced(segment=torch.where(mask, torch.arange(3 + columns) // 2, 0))


def test_wrong_recipe_counts_the_pad():
    ratio = torch.tensor([3.98, 0.0])
    assert float(ratio.min()) == 0.0 and float(ratio.std(correction=0)) == pytest.approx(1.99)


def test_ours_describes_real_tokens():
    mask = torch.tensor([[True, False]])
    batch = batch_with_ratios(torch.tensor([[3.98, 1.0]], dtype=torch.float64).log(), mask=mask)
    raw = weights("exact", batch).raw
    assert float(mean_weight(raw, mask)) == pytest.approx(3.98) and mean_weight(raw, mask).n == 1
    assert float(chi2(raw, mask, normalized=True)) == pytest.approx(0.0, abs=1e-15)
    (gap,) = [gap for gap in diagnose(batch)["gaps"] if gap["gap"] == "total"]
    assert gap["sd"] == 0.0 and gap["tokens"] == 1
    assert all(q == pytest.approx(1.3812818, abs=1e-7) for q in gap["quantiles"].values())


@pytest.mark.parametrize("columns", [1, 2, 17])
def test_the_whole_diagnosis_is_that_of_the_real_tokens(columns):
    found, want = (json.dumps(diagnose(padded(c)), sort_keys=True) for c in (columns, 0))
    assert found == want


@pytest.mark.parametrize("statistic", [mean_weight, second_moment, chi2, renyi2, ess], ids=lambda f: f.__name__)
def test_every_statistic_of_every_rule(statistic):
    narrow, wide = padded(0), padded(5)
    for rule, granularity in PAIRS:
        for name in ("raw", "value"):
            a, b = (getattr(weights(rule, batch, granularity), name) for batch in (narrow, wide))
            assert float(statistic(b, wide.mask)) == pytest.approx(float(statistic(a[narrow.mask])), rel=1e-12)
            assert statistic(b, wide.mask).n == 8
            assert float(b[wide.mask].min()) == float(a[narrow.mask].min())
