"""The mixture of no correction with the whole one: its coefficient, what it depends on, and where it is exact."""

import math

import numpy as np
import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting.adaptive import ais_alpha, diagnosed_alpha, interpolated, weighed_once
from testbed.weighting.rule import GRANULARITIES
from testbed.weighting.rules import weigh
from tests.weighting.worlds import batch_with_ratios, random_batch


def alpha_by_hand(w, kl_scale):
    w = np.asarray(w, dtype=np.float64)
    ess, cv = w.sum() ** 2 / (w**2).sum(), w.std() / w.mean()
    return ess / len(w) * (1 - math.exp(-np.mean(w - 1 - np.log(w)) / kl_scale)) / (1 + cv)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_coefficient_counts_each_ratio_once(granularity, rng):
    batch = random_batch(rng, rows=6, horizon=7)
    w = weigh("exact", batch, granularity=granularity).raw
    seen = []
    for b in range(batch.batch_size):
        real = [t for t in range(batch.horizon) if batch.mask[b, t]]
        if granularity in ("token", "prefix"):
            chosen = real
        elif granularity.startswith("segment"):
            chosen = [t for i, t in enumerate(real) if i == 0 or batch.segment[b, t] != batch.segment[b, real[i - 1]]]
        else:
            chosen = real[:1]
        seen += [float(w[b, t]) for t in chosen]
    assert int(weighed_once(batch, granularity).sum()) == len(seen)
    alpha = ais_alpha(batch, granularity, 0.3)
    assert alpha == pytest.approx(alpha_by_hand(seen, 0.3), rel=1e-10)
    assert 0.0 < alpha < 1.0
    auto, fixed = (weigh("ais", batch, granularity=granularity, **p) for p in ({"kl_scale": 0.3}, {"alpha": alpha}))
    assert torch.equal(auto.value, fixed.value)


def test_two_of_the_three_diagnostics_are_one_number(rng):
    """ESS/n = 1 / (1 + CV^2): weights of one CV and one divergence cannot be told apart by their ESS."""
    w = rng.lognormal(0.0, 1.0, 50)
    ess, cv = w.sum() ** 2 / (w**2).sum(), w.std() / w.mean()
    assert ess / 50 == pytest.approx(1 / (1 + cv**2), rel=1e-12)


def test_it_rises_with_the_divergence_and_falls_as_the_weights_degenerate():
    """Two ratios e^d and e^-d: alpha climbs from 0 (nothing to correct) and comes down again (nothing to trust)."""
    both = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    path = [diagnosed_alpha(both * d, mask, 0.01) for d in (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 300.0)]
    top = path.index(max(path))
    assert path[0] == 0.0 and 0 < top < 6
    assert path[: top + 1] == sorted(path[: top + 1]) and path[top:] == sorted(path[top:], reverse=True)
    assert path[-1] == pytest.approx(0.25, rel=1e-9)  # one of two weights dominates: ESS/n = 1/2, CV = 1


def test_ends_and_middle():
    log_ratio = torch.log(torch.tensor([[0.0, 1e-300, 0.4, 1.0, 3.0, 1e300]], dtype=torch.float64))
    assert interpolated(log_ratio, 1.0)[0].tolist() == pytest.approx([0.0, 1e-300, 0.4, 1.0, 3.0, 1e300], rel=1e-12)
    assert interpolated(log_ratio, 0.0)[0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    mixed = [0.0, 0.75, 0.85, 1.0, 1.5, 2.5e299]  # 0, not 0.75: the target cannot draw the first
    assert interpolated(log_ratio, 0.25)[0].tolist() == pytest.approx(mixed, rel=1e-12)
    assert interpolated(log_ratio, 0.1)[0, 3] == 1.0


def test_the_gradient_is_the_same_mixture_of_both_gradients(rng):
    batch = random_batch(rng)
    none, exact, mixed = (weigh(r, batch, **p).value for r, p in (("none", {}), ("exact", {}), ("ais", {"alpha": 0.3})))
    torch.testing.assert_close(mixed, 0.7 * none + 0.3 * exact, rtol=1e-12, atol=1e-15)


def test_degenerate_batches():
    nothing = batch_with_ratios([[0.3]], mask=[[False]])
    assert ais_alpha(nothing) == 0.0
    assert weigh("ais", batch_with_ratios([[0.0, 0.0]])).value.tolist() == [[1.0, 1.0]]
    impossible = batch_with_ratios([[-math.inf, -math.inf]])
    assert weigh("ais", impossible).value.tolist() == [[0.0, 0.0]]
    huge = weigh("ais", batch_with_ratios([[1e4, 0.0]]))
    assert huge.saturated == 1 and not huge.value.isnan().any()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alpha": "on"}, r"`alpha` of rule `ais` must be a number in \[0, 1\] or 'auto'; found 'on'"),
        ({"alpha": 1.5}, r"`alpha` must lie in \[0, 1\]; found 1.5"), ({"alpha": None}, "`alpha` must be a number"),
        ({"kl_scale": 0.0}, "`kl_scale` must be > 0"),
    ],
)  # fmt: skip
def test_refusals(params, message):
    with pytest.raises(InputError, match=message):
        weigh("ais", batch_with_ratios([[0.1]]), **params)
