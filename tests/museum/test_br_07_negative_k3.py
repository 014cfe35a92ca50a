"""BR-07: an estimate that cannot be negative comes out negative.

https://github.com/google/tunix/issues/2315 and https://github.com/unslothai/unsloth-zoo/pull/1240: cancellation in
exp(d) - 1 - d, here at d = 1e-6 in float32.
"""

import pytest
import torch

from testbed.stats.divergence import kl, kl_bounded, kl_k2, kl_k3, kl_straight_through

SMALL = torch.logspace(-12, 0, 481, dtype=torch.float64)
GAPS = torch.cat([SMALL, -SMALL, torch.zeros(1)])


def test_wrong_recipe_cancels():
    d = torch.tensor(1e-6)
    assert float(torch.exp(d) - d - 1) == pytest.approx(-5.96e-08, rel=1e-3)


def test_ours_keeps_its_digits():
    assert float(kl_k3(torch.tensor(1e-6))) == pytest.approx(5.0e-13, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("direction", ["behavior_to_target", "target_to_behavior"])
def test_every_form_of_it_is_positive(direction, dtype):
    d = GAPS.to(dtype)
    forms = {
        "k3": kl_k3(d, direction=direction),
        "k2": kl_k2(d, direction=direction),
        "bounded": kl_bounded(d, direction=direction).value,
        "means": torch.stack([kl(x, direction=direction) for x in d[:: len(d) // 20]]),
    }
    if direction == "behavior_to_target":
        forms["straight_through"] = kl_straight_through(d)
    for values in forms.values():
        assert float(values.min()) >= 0.0
    wide = d.double()
    near = wide.abs() < 1e-3
    torch.testing.assert_close(forms["k3"][near], wide[near].square() / 2, rtol=1e-3, atol=0)
