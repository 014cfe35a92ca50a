"""Products of iid ratios: word counts against enumeration of responses, long lengths, medians, refusals."""

import math
from itertools import product

import pytest
import torch

from testbed.core.errors import InputError, TooLarge
from testbed.exact.iid_weights import iid_weight_law, lower_median

PI, MU = (torch.tensor(p, dtype=torch.float64) for p in ([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]))


@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_counts_agree_with_all_responses(length):
    log_weight, probs = iid_weight_law(PI, MU, length)
    assert len(probs) == math.comb(length + 2, 2)
    ratio = (PI / MU).tolist()
    brute = [
        (math.prod(ratio[a] for a in y), math.prod(float(MU[a]) for a in y)) for y in product(range(3), repeat=length)
    ]
    for f in (lambda w: 1.0, lambda w: w, lambda w: w * w, lambda w: min(w, 0.7), lambda w: float(w < 0.4)):
        counted = sum(p * f(w) for w, p in zip(log_weight.exp().tolist(), probs.tolist(), strict=True))
        assert counted == pytest.approx(sum(p * f(w) for w, p in brute), rel=1e-12)


def test_a_long_response_keeps_mass_and_mean():
    pi, mu = (torch.tensor(p, dtype=torch.float64) for p in ([0.52, 0.48], [0.5, 0.5]))
    log_weight, probs = iid_weight_law(pi, mu, 4096)
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-10)
    assert float((probs * log_weight.exp()).sum()) == pytest.approx(1.0, abs=1e-9)


def test_impossible_words():
    pi, mu = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.0, 0.75]).double()
    log_weight, probs = iid_weight_law(pi, mu, 2)
    assert sorted(log_weight.exp().tolist()) == [0.0, 0.0, 4.0]
    assert sorted(probs.tolist()) == pytest.approx([0.0625, 0.375, 0.5625])
    assert float(probs[log_weight.isfinite()]) == pytest.approx(0.0625)


def test_median_takes_the_lower_value_at_a_half():
    values = torch.tensor([3.0, 1.0, 2.0])
    assert lower_median(values, torch.tensor([0.25, 0.5, 0.25])) == 1.0
    assert lower_median(values, torch.tensor([0.3, 0.4, 0.3])) == 2.0
    assert lower_median(values, torch.tensor([0.1, 0.1, 0.8])) == 2.0


def test_refusals():
    with pytest.raises(TooLarge, match="word counts"):
        iid_weight_law(torch.full((64,), 1 / 64), torch.full((64,), 1 / 64), 64)
    with pytest.raises(InputError, match="`length` must be >= 0"):
        iid_weight_law(PI, MU, -1)
    with pytest.raises(InputError, match="sum to 1"):
        lower_median(torch.tensor([1.0]), torch.tensor([0.2]))
