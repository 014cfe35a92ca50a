"""Weights of responses that taper off, and the gate on suffixes."""

import math

import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting.rules import weigh
from tests.weighting.worlds import batch_with_ratios, random_batch


@pytest.mark.parametrize(("reward", "peak"), [(1.0, 2 / 3), (-1.0, 3 / 2)])
def test_the_gamma_kernel_is_one_on_policy_peaks_at_k_over_lam_and_vanishes_in_both_tails(reward, peak):
    products = torch.tensor([1e-300, 1e-6, peak / 1.01, peak, 1.01 * peak, 30.0, 1e300, 1.0], dtype=torch.float64)
    w = weigh("vespo", batch_with_ratios(products.log()[:, None], reward=[reward] * 8)).value[:, 0]
    assert w[3] > w[2] and w[3] > w[4] and w[3] >= w.max()
    assert w[0] == 0.0 and w[1] < 1e-10 and w[5] < 1e-20 and w[6] == 0.0 and w[7] == 1.0
    k, lam = (2.0, 3.0) if reward > 0 else (3.0, 2.0)
    assert float(w[3]) == pytest.approx(math.exp(lam) * peak**k * math.exp(-lam * peak), rel=1e-12)


def test_without_a_rate_the_kernel_is_a_power():
    batch = batch_with_ratios([[1e4], [math.log(3.0)]])
    w = weigh("vespo", batch, k_pos=1.0, lam_pos=0.0).value[:, 0]
    assert w.tolist() == pytest.approx([math.inf, 3.0])


def test_topr_tapers_the_negative_side_only():
    batch = batch_with_ratios(
        [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [3.0, 3.0]], reward=[1, 1, -1, -1, 0.0]
    )
    w = weigh("topr", batch)
    assert w.value[:, 0].tolist() == pytest.approx([1.0, 1.0, 1.0, math.exp(-2.0), 1.0])
    assert torch.equal(w.value[:, 0], w.value[:, 1])
    assert weigh("topr", batch, cap=0.01).value[:, 0].tolist() == pytest.approx([1.0, 1.0, 0.01, 0.01, 1.0])


def test_the_product_decides_not_the_token():
    """Token by token the first ratio would be cut to 1 and the second kept at e^-3; the response has e^-1."""
    batch = batch_with_ratios([[2.0, -3.0]], reward=[-1.0])
    assert weigh("topr", batch).value[0].tolist() == pytest.approx([math.exp(-1.0)] * 2)


def test_a_trigger_removes_what_follows_where_the_advantage_is_negative():
    ratios = torch.log(torch.tensor([[1.0, 1.9, 2.1, 1.0, 1.0], [1.0, 1.9, 2.1, 1.0, 1.0]], dtype=torch.float64))
    w = weigh("mu_grpo", batch_with_ratios(ratios, reward=[-1.0, 1.0]), eps_high=9.0)
    assert w.gate.tolist() == [[True, True, True, False, False], [True] * 5]
    assert w.value[0].tolist() == pytest.approx([1.0, 1.9, 2.1, 0.0, 0.0])
    assert w.objective[0].tolist() == pytest.approx([-1.0, -1.9, -2.1, 0.0, 0.0])
    assert w.acted[0].tolist() == [False, False, False, True, True]


def test_padding_triggers_nothing_and_a_tie_does_not_either():
    edge = math.log(2.0)
    row = torch.tensor([[9.0, edge, 0.0, 0.0]], dtype=torch.float64)
    batch = batch_with_ratios(row, mask=[[False, True, True, True]], reward=[-1.0])
    assert weigh("mu_grpo", batch).gate[0].tolist() == [False, True, True, True]
    always = batch_with_ratios([[0.0, 0.0, 0.0]], mask=[[False, True, True]], reward=[-1.0])
    assert weigh("mu_grpo", always, trigger_high=0.9).gate[0].tolist() == [False, True, False]


def test_the_low_side_can_trigger_too(rng):
    batch = batch_with_ratios([[0.0, math.log(0.4), 0.0]], reward=[-1.0])
    assert weigh("mu_grpo", batch, eps_low=1.0).gate.all()
    assert weigh("mu_grpo", batch, eps_low=1.0, trigger_low=0.5).gate[0].tolist() == [True, True, False]


def test_the_gate_reads_the_prefix_only(rng):
    """Changing tokens after t moves no gate up to t."""
    batch = random_batch(rng, rows=20, horizon=8, scale=1.5).replaced(reward=-torch.ones(20, dtype=torch.float64))
    gate = weigh("mu_grpo", batch).gate
    for t in range(1, 8):
        late = torch.where(torch.arange(8) >= t, -3.0 * torch.ones_like(batch.logp_target), batch.logp_target)
        changed = weigh("mu_grpo", batch.replaced(logp_target=late)).gate
        assert torch.equal(changed[:, :t], gate[:, :t])
    plain = weigh("ppo_clip", batch, eps_low=0.5, eps_high=1.0).gate
    assert (gate <= plain).all() and not torch.equal(gate, plain)


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("vespo", {"k_pos": 0.0}, "`k_pos` must be > 0"), ("vespo", {"k_neg": math.nan}, "`k_neg` must be a number"),
        ("vespo", {"lam_pos": -1.0}, "`lam_pos` must be >= 0"), ("vespo", {"lam_neg": "x"}, "`lam_neg` must be a number"),
        ("topr", {"cap": 0.0}, "`cap` must be > 0"), ("mu_grpo", {"trigger_high": 0.0}, "`trigger_high` must be > 0"),
        ("mu_grpo", {"trigger_low": 3.0}, "`trigger_low` must not exceed `trigger_high`"),
        ("mu_grpo", {"eps_low": -1.0}, "`eps_low` must be >= 0"), ("mu_grpo", {"eps_high": -1.0}, "`eps_high` must be >= 0"),
    ],
)  # fmt: skip
def test_refusals(rule, params, message):
    with pytest.raises(InputError, match=message):
        weigh(rule, batch_with_ratios([[0.1]]), **params)
