"""Numbers that can be checked by hand: reported surprises, gradients of surrogates, operators on their own."""

import math

import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting import truncate
from testbed.weighting.rules import weigh
from testbed.weighting.weights import apart
from tests.weighting.worlds import batch_of, batch_with_ratios, random_batch


def test_a_saturated_token_is_capped_and_counted():
    on, off = (batch_of([[-2.0]], [[-91.0]], mask=[[m]], dtype=torch.float32) for m in (True, False))
    w = weigh("tis", on)
    assert (w.value.item(), w.raw.item(), w.saturated) == (2.0, math.inf, 1)
    w = weigh("tis", off)
    assert (w.value.item(), w.raw.item(), w.saturated) == (0.0, 0.0, 0)


def test_clipping_does_not_bound_a_negative_advantage():
    batch = batch_with_ratios([[math.log(10.0)]], reward=[-1.0])
    assert weigh("ppo_clip", batch).objective.item() == pytest.approx(-10.0)
    assert weigh("ppo_clip", batch).value.item() == pytest.approx(10.0)
    dual = weigh("dual_clip", batch)
    assert dual.objective.item() == pytest.approx(-3.0)
    assert (dual.value.item(), dual.gate.item(), dual.acted.item()) == (0.0, False, True)
    double = batch_with_ratios([[math.log(20.0)]], reward=[-1.0])
    assert weigh("ppo_clip", double).objective.item() == pytest.approx(-20.0)


def test_outside_the_interval_is_not_without_gradient():
    batch = batch_with_ratios([[math.log(1.3)]], reward=[-1.0])
    w = weigh("ppo_clip", batch)
    assert w.raw.item() > 1.2
    assert w.gate.item()
    assert not w.acted.item()


@pytest.mark.parametrize("rule", ["ppo_clip", "dual_clip", "gspo", "decoupled_ppo"])
def test_the_weight_is_the_gradient_of_the_objective(rule, rng):
    """d objective / d log target = value * advantage, by central differences in the log ratio."""
    batch = random_batch(rng, rows=12, scale=1.5)
    step = 1e-6
    up, down = (weigh(rule, batch.replaced(logp_target=batch.logp_target + d * batch.mask)) for d in (step, -step))
    w = weigh(rule, batch)
    slope = (up.objective - down.objective) / (2 * step)
    torch.testing.assert_close(slope, w.value * batch.reward[:, None], rtol=1e-6, atol=1e-8)
    assert (w.acted.any(), (w.value != 0).any()) == (True, True) or rule == "gspo"


@pytest.mark.parametrize("rule", ["tis", "exact", "none", "icepop"])
def test_bands_bind_on_the_ratio_and_not_on_its_inverse(rule):
    batch = batch_with_ratios(torch.log(torch.tensor([[0.25, 0.45, 2.5, 4.48]], dtype=torch.float64)))
    kept = {"icepop": [False, False, True, True]}.get(rule, [True] * 4)
    assert weigh(rule, batch).gate[0].tolist() == kept


def test_rejected_tokens_are_left_to_the_denominator():
    """The kept sum .8 e^... of the reported example: the mask supplies the numerator and the gate, nothing else."""
    batch = batch_with_ratios([[0.1, -1.5, 0.8, -10.0, 0.3]])
    w = weigh("icepop", batch, low=0.5, high=2.0)
    assert w.gate[0].tolist() == [True, False, False, False, True]
    total = w.value.sum().item()
    assert total / 5 == pytest.approx(0.491006, abs=1e-6)
    assert total / w.gate.sum().item() == pytest.approx(1.227515, abs=1e-6)


def test_a_fully_masked_response_is_not_a_ratio_of_one():
    batch = batch_with_ratios([[0.3, 0.4], [0.0, 0.0]], mask=[[False, False], [True, True]], reward=[2.0, 0.0])
    for rule in ("gspo", "geo_mask", "none", "pnpo"):
        assert weigh(rule, batch).value[0].tolist() == [0.0, 0.0]


def test_spire_caps_are_per_segment():
    batch = batch_with_ratios([[1.0, 1.0, 1.0]], mask=[[True, True, True]], segment=[[0, 1, 1]], dtype=torch.float32)
    w = weigh("spire", batch, cap=[2.0, 7.0])
    assert w.value[0].tolist() == [2.0, 7.0, 7.0]
    assert w.raw[0].tolist() == pytest.approx([math.e, math.e**3, math.e**3])
    tensor = weigh("spire", batch, cap=torch.tensor([2.0, 7.0, 99.0]))
    assert torch.equal(tensor.value, w.value)
    assert torch.equal(weigh("spire", batch, cap=torch.tensor(2.0)).value, weigh("spire", batch, cap=2).value)


def test_exact_may_be_clamped():
    batch = batch_with_ratios([[-20.0, 0.0, 20.0]])
    assert weigh("exact", batch, clamp=True).value[0].tolist() == pytest.approx([1e-6, 1.0, 1e6])
    assert weigh("exact", batch).value[0, 2].item() == pytest.approx(math.exp(20.0))


def test_a_response_kept_with_weight_one_is_not_acted_on():
    batch = batch_with_ratios([[0.0005, 0.0005], [0.0005, 0.0025]])
    w = weigh("geo_mask", batch)
    assert w.value.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert w.acted.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", ["scalar cap", "cap per token", "clamp"])
def test_operators_have_finite_gradients_everywhere(operator, dtype):
    """Where an operator is differentiated, a capped token has slope 0, never infinity times 0."""
    log_ratio = torch.tensor([[1e4, 0.3, -1e4, -math.inf, 2.0]], dtype=dtype, requires_grad=True)
    if operator == "clamp":
        w = truncate.clamp(log_ratio, 0.5, 2.0)
        wanted = [2.0, math.exp(0.3), 0.5, 0.0, 2.0]
    else:
        w = truncate.truncate(log_ratio, 2.0 if operator == "scalar cap" else torch.full_like(log_ratio, 2.0).detach())
        wanted = [2.0, math.exp(0.3), 0.0, 0.0, 2.0]
    w.sum().backward()
    assert w[0].tolist() == pytest.approx(wanted)
    assert log_ratio.grad[0].tolist() == pytest.approx([0.0, math.exp(0.3), 0.0, 0.0, 0.0])


def test_a_cap_per_token_is_checked():
    with pytest.raises(InputError, match=r"`cap` must be > 0; found -1.0"):
        truncate.truncate(torch.zeros(1, 2), torch.tensor([[2.0, -1.0]]))


def test_the_surrogate_is_defined_where_the_advantage_is_zero_and_the_ratio_infinite():
    w = weigh("ppo_clip", batch_with_ratios([[1e4]], reward=[0.0]))
    assert (w.objective.item(), w.value.item(), w.saturated) == (0.0, math.inf, 1)


def test_routes_that_differ_by_rounding_are_not_acted_on():
    raw = torch.tensor([[1.5, -700.0, 0.0, -math.inf, -math.inf, 2.0]], dtype=torch.float64)
    value = raw * (1 + 4e-16)
    value[0, 4], value[0, 5] = -3.0, 2.0 + 1e-9
    assert apart(value, raw)[0].tolist() == [False, False, False, False, True, True]
