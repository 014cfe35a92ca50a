"""M2PO's window: which tokens count, what the budget means, and where the window stops tightening."""

import math

import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting.budget import budget_threshold, harmful, window
from testbed.weighting.rules import weigh
from tests.weighting.worlds import batch_with_ratios, random_batch


@pytest.mark.parametrize("budget", [0.0, 1e-4, 0.04, 0.5, 3.0])
def test_clipped_at_the_threshold_the_mean_square_is_the_budget(budget, rng):
    log_ratio = torch.tensor(rng.normal(0.0, 1.0, 200))
    tau = budget_threshold(log_ratio, budget)
    raw = float(log_ratio.square().mean())
    if budget >= raw:
        assert tau == math.inf
    else:
        assert float(log_ratio.square().clamp(max=tau**2).mean()) == pytest.approx(budget, rel=1e-12, abs=1e-15)


def test_the_threshold_between_two_squares_is_solved_exactly():
    """Squares 1, 4, 9, budget 3: 1 + 2 tau^2 = 9, so tau = 2; the published code stops at a square below."""
    assert budget_threshold(torch.tensor([3.0, -1.0, 2.0]), 3.0) == pytest.approx(2.0, rel=1e-12)
    assert budget_threshold(torch.tensor([3.0, -1.0, 2.0]), 2.0) == pytest.approx(math.sqrt(2.5), rel=1e-12)
    assert budget_threshold(torch.tensor([]), 0.04) == math.inf


def test_only_tokens_moved_with_their_advantage_count():
    """Large drifts against the advantage leave the window open; the same drifts along it close it."""
    reward, drift = [1.0, -1.0], [[-1.0, -1.2], [1.0, 1.1]]
    against = weigh("m2po", batch_with_ratios(drift, reward=reward), eps_low=0.0, eps_high=0.0)
    assert against.gate.all()
    along = weigh("m2po", batch_with_ratios(drift, reward=[-1.0, 1.0]), eps_low=0.0, eps_high=0.0)
    assert not along.gate.any()
    assert not harmful(torch.tensor([[1.0, -1.0]]), torch.zeros(1, 2)).any()


def test_the_window_is_never_tighter_than_asked():
    batch = batch_with_ratios([[math.log(1.49), math.log(1.51), 2.0]], reward=[1.0])
    assert weigh("m2po", batch).gate[0].tolist() == [True, False, False]
    assert weigh("m2po", batch, eps_high=6.5).gate.all()
    low = batch_with_ratios([[math.log(0.71), math.log(0.69), -2.0]], reward=[-1.0])
    assert weigh("m2po", low).gate[0].tolist() == [True, False, False]
    assert window(0.0, 0.3, 0.5) == (0.3, 0.5)
    assert window(1e5, 0.3, 0.5) == (1.0, math.inf)


def test_within_the_budget_nothing_is_clipped():
    batch = batch_with_ratios([[0.15, 0.19, -0.1], [-0.15, -0.19, 0.1]], reward=[1.0, -1.0])
    w = weigh("m2po", batch, eps_low=0.0, eps_high=0.0)
    assert w.gate.all() and not w.acted.any()
    assert not weigh("m2po", batch, eps_low=0.0, eps_high=0.0, budget=0.02).gate.all()


def test_padding_and_other_rows_count_only_as_tokens(rng):
    batch = random_batch(rng, rows=8, scale=2.0)
    batch = batch.replaced(reward=torch.tensor([1.0, -1.0] * 4, dtype=torch.float64))
    log_ratio = batch.logp_target - batch.logp_behavior
    counted = [
        float(log_ratio[b, t])
        for b in range(8) for t in range(batch.horizon)
        if batch.mask[b, t] and float(log_ratio[b, t]) * float(batch.reward[b]) > 0
    ]  # fmt: skip
    tau = budget_threshold(torch.tensor(counted, dtype=torch.float64), 0.04)
    auto, fixed = (weigh("m2po", batch, eps_low=0.0, eps_high=0.0, **p) for p in ({}, {"tau": tau}))
    assert torch.equal(auto.gate, fixed.gate) and torch.equal(auto.objective, fixed.objective)
    assert 0 < int(auto.gate.sum()) < batch.n_tokens


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tau": "big"}, "`tau` of rule `m2po` must be a number >= 0 or 'auto'; found 'big'"), ({"tau": -1.0}, "`tau` must be"),
        ({"budget": -0.1}, "`budget` must be >= 0"), ({"eps_low": -0.1}, "`eps_low` must be >= 0"),
        ({"eps_high": math.nan}, "`eps_high` must be a number"),
    ],
)  # fmt: skip
def test_refusals(params, message):
    with pytest.raises(InputError, match=message):
        weigh("m2po", batch_with_ratios([[0.1]]), **params)
