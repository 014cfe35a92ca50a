import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.estimators.equilibrium import equilibrium_share
from testbed.estimators.mixing import optimal_replay_share, replay_share_at_size
from testbed.estimators.pareto_front import pareto_front

EXAMPLE = {"v_fresh": 1.0, "v_replay": 1.25, "cost_fresh": 1.0, "cost_replay": 0.25, "bias": 0.25, "budget": 16.0}
GRID = np.linspace(0, 1, 1001)


def mse(share, v_fresh, v_replay, cost_fresh, cost_replay, bias, budget):
    size = budget / (share * cost_replay + (1 - share) * cost_fresh)
    return (share * bias) ** 2 + (share * v_replay + (1 - share) * v_fresh) / size


positive = st.floats(0.05, 20)
problems = st.fixed_dictionaries(
    {
        "v_fresh": positive,
        "v_replay": positive,  # replay may vary less, and cost more, than fresh samples
        "cost_fresh": positive,
        "cost_replay": positive,
        "bias": st.floats(-2, 2),
        "budget": positive,
    }
)


@given(problems, st.floats(0, 1))
def test_no_share_is_better(problem, share):
    best = optimal_replay_share(**problem)
    assert 0 <= best.share <= 1
    assert best.mse == pytest.approx(mse(best.share, **problem), rel=1e-12)
    assert best.mse <= mse(share, **problem) * (1 + 1e-12)
    assert best.n_samples == pytest.approx(
        problem["budget"] / (best.share * problem["cost_replay"] + (1 - best.share) * problem["cost_fresh"])
    )


@given(problems, st.floats(0.05, 20), st.floats(0, 40))
def test_constraints_hold_and_the_best_allowed_share_is_found(problem, cap, pool):
    feasible = [
        a
        for a in GRID
        if a * problem["cost_replay"] + (1 - a) * problem["cost_fresh"] <= cap
        and a * problem["budget"] <= pool * (a * problem["cost_replay"] + (1 - a) * problem["cost_fresh"])
    ]
    try:
        best = optimal_replay_share(**problem, cost_cap=cap, pool=pool)
    except InputError:
        assert feasible == []
        return
    assert best.share * problem["cost_replay"] + (1 - best.share) * problem["cost_fresh"] <= cap * (1 + 1e-12)
    assert best.share * best.n_samples <= pool * (1 + 1e-9) + 1e-12
    assert all(best.mse <= mse(a, **problem) * (1 + 1e-12) for a in feasible)
    assert min(best.multipliers.values()) >= 0


@pytest.mark.parametrize(
    ("change", "regime", "share"),
    [
        ({}, "interior", 4 / 13),
        ({"v_replay": 4.0}, "none", 0.0),
        ({"bias": 0.01}, "all", 1.0),
        ({"cost_cap": 0.55}, "cost_bound", 0.6),
        ({"pool": 2.0}, "pool_bound", 2 / 17.5),
        ({"bias": 0.0, "v_replay": 4.0}, "tie", 0.0),
    ],
)
def test_every_regime(change, regime, share):
    best = optimal_replay_share(**EXAMPLE | change)
    assert best.regime == regime
    assert best.share == pytest.approx(share, rel=1e-12)
    bound = {"none": "at_least_0", "all": "at_most_1", "cost_bound": "cost_cap", "pool_bound": "pool"}
    assert {name for name, price in best.multipliers.items() if price > 0} == (
        {bound[regime]} if regime in bound else {"at_least_0"} if regime == "tie" else set()
    )
    assert best.other == (1.0 if regime == "tie" else None)


@pytest.mark.parametrize(("name", "limit", "step"), [("cost_cap", 0.55, -1e-5), ("pool", 2.0, -1e-5)])
def test_a_multiplier_is_what_a_looser_limit_saves(name, limit, step):
    best, tighter, looser = (optimal_replay_share(**EXAMPLE, **{name: limit + d}) for d in (0.0, step, -step))
    assert best.multipliers[name] > 0
    assert (looser.mse - tighter.mse) / (2 * step) == pytest.approx(best.multipliers[name], rel=1e-5)


def test_replay_that_costs_nothing():
    best = optimal_replay_share(**EXAMPLE | {"cost_replay": 0, "bias": 0.01})
    assert best.regime == "all"
    assert best.n_samples == math.inf and best.mse == pytest.approx(1e-4)  # no variance is left, the bias is


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v_fresh": -1.0}, "`v_fresh` must be finite and >= 0"),
        ({"cost_fresh": 0.0}, "`cost_fresh` must be finite and > 0"),
        ({"bias": math.nan}, "`bias` must be finite"),
        ({"budget": math.inf}, "`budget` must be finite and > 0"),
        ({"cost_cap": 0.2}, "`cost_cap` must be at least 0.25"),
        ({"cost_cap": 0.3, "pool": 1.0}, "`pool` must allow the share"),
        ({"pool": -1.0}, "`pool` must be finite and >= 0"),
    ],
)
def test_what_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        optimal_replay_share(**EXAMPLE | change)


def test_costlier_replay_meets_a_ceiling_with_less_of_it():
    swapped = {"v_fresh": 4.0, "v_replay": 1.0, "cost_fresh": 0.5, "cost_replay": 1.0, "bias": 0.1, "n": 4}
    free, held = replay_share_at_size(**swapped), replay_share_at_size(**swapped, cost_cap=0.75)
    assert free.share == 1.0 and held.share == 0.5 and held.regime == "cost_bound"
    assert held.multipliers["cost_cap"] == pytest.approx((0.75 - 2 * 0.5 * 0.01) / 0.5)


def test_fixed_size_has_a_pool_too():
    common = {"v_fresh": 4.0, "v_replay": 1.0, "cost_fresh": 1.0, "cost_replay": 0.5, "bias": 0.1, "n": 4}
    best = replay_share_at_size(**common, pool=1.0)
    assert (best.share, best.regime, best.n_samples) == (0.25, "pool_bound", 4)
    assert best.multipliers["pool"] == pytest.approx((0.75 - 2 * 0.25 * 0.01) / 4)


# ---------------------------------------------------------------------------------------------- Pareto front
@given(problems)
def test_the_front_is_what_comparison_leaves(problem):
    problem = problem | {"cost_replay": min(problem["cost_replay"], 0.9 * problem["cost_fresh"])}
    front = pareto_front(**problem)
    errors = np.array([mse(a, **problem) for a in GRID])
    least_after = np.append(np.minimum.accumulate(errors[::-1])[::-1][1:], np.inf)
    for a, error, later in zip(GRID, errors, least_after, strict=True):
        if later <= error * (1 - 1e-9):
            assert not front.optimal(a)
        elif front.optimal(a):
            assert later >= error * (1 - 1e-9)
            assert front.gap(a) >= 0


def test_front_of_equal_costs_is_the_least_error():
    same = {"v_fresh": 1.0, "v_replay": 2.0, "cost_fresh": 1.0, "cost_replay": 1.0, "bias": 0.5}
    front = pareto_front(**same, n=4)
    assert [(p.low, p.high) for p in front.pieces] == [(0.0, 0.0)]
    assert front.at_cost(1.0) == 0.0


def test_front_refuses():
    with pytest.raises(InputError, match="exactly one of `budget` and `n`"):
        pareto_front(v_fresh=1, v_replay=2, cost_fresh=1, cost_replay=0.5, bias=0)
    with pytest.raises(InputError, match="`cost_replay` must be at most `cost_fresh`"):
        pareto_front(v_fresh=1, v_replay=2, cost_fresh=1, cost_replay=2, bias=0, n=4)
    front = pareto_front(v_fresh=1, v_replay=4, cost_fresh=1, cost_replay=0.5, bias=0.1, budget=10)
    with pytest.raises(InputError, match="Pareto-optimal share"):
        front.gap(0.9)
    with pytest.raises(InputError, match=r"`cost_cap` must be at least 0\.5"):
        front.at_cost(0.4)


# ---------------------------------------------------------------------------------------------- equilibrium
COMMON = {"v_fresh": 1.0, "cost_fresh": 1.0, "cost_replay": 0.25, "bias": 0.25, "budget": 16.0}


def test_constant_variance_is_the_plain_optimum():
    found = equilibrium_share(v_replay=lambda a: 1.25, **COMMON)
    assert found.verdict == "one"
    assert found.shares[0] == pytest.approx(4 / 13, abs=1e-12)


def test_constraints_clip_the_equilibrium():
    found = equilibrium_share(v_replay=lambda a: 1.25, **COMMON, pool=2.0)
    assert found.shares[0] == pytest.approx(2 / 17.5, abs=1e-12)


def test_the_falling_variance_has_both_conditions_and_three_equilibria():
    def falls(share):
        return 1 + 0.7 * min(max((0.45 - share) / 0.15, 0.0), 1.0)

    found = equilibrium_share(v_replay=falls, v_fresh=1.0, cost_fresh=1.0, cost_replay=0.2, bias=0.1**0.5, budget=8.0)
    assert len(found.shares) == 3 and found.verdict == "several"
    assert found.convex_everywhere and found.bias_dominates
    assert not found.nondecreasing and not found.uniqueness_guaranteed


def test_a_leap_is_no_equilibrium():
    """Past the leap fresh samples alone are best, before it replay alone is."""
    found = equilibrium_share(
        v_replay=lambda a: 1.0 + 8 * a, v_fresh=1.0, cost_fresh=1.0, cost_replay=0.25, bias=0.0, budget=4.0
    )
    assert found.verdict == "none" and len(found.jumps) == 1
    assert found.jumps[0] == pytest.approx(3 / 8, abs=1e-9)  # v_r c_r = v_f c_f
    assert not found.existence_guaranteed


def test_touching_counts():
    """A best response a - (a - p)^2 (half at most, and never below 0): it touches the share at p without crossing it."""
    p, saving, squared = 0.3033, 0.75, 1.0

    def touches(share):  # the variance whose best response this is, by solving K1's formula for v_r
        response = min(share - (share - p) ** 2, 0.5)
        return 1 + (saving - 2 * response * squared) / (1 - 2 * response * saving)

    found = equilibrium_share(v_replay=touches, **COMMON)
    assert found.shares == pytest.approx((0.0, p), abs=1e-4)
    assert found.verdict == "several" and found.jumps == ()


def test_equilibrium_refuses():
    with pytest.raises(InputError, match="`grid` must be >= 3"):
        equilibrium_share(v_replay=lambda a: 1.0, **COMMON, grid=2)
    with pytest.raises(InputError, match=r"`v_replay\(share\)` must be finite"):
        equilibrium_share(v_replay=lambda a: 1 / (1 - a) if a < 1 else math.inf, **COMMON)
