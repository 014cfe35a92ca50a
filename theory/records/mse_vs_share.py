"""Mean squared error against the replay share, one problem per regime of the optimum, with its multipliers."""

from __future__ import annotations

from typing import Any

from testbed.estimators.mixing import optimal_replay_share, replay_share_at_size
from testbed.estimators.replay_mse import Quadratic, mse_at_budget, mse_at_size, sources

POINTS = 101
COSTS = {"v_fresh": 1.0, "cost_fresh": 1.0, "cost_replay": 0.25}
PROBLEMS: dict[str, dict[str, float]] = {  # regime -> what it takes
    "interior": {**COSTS, "v_replay": 1.25, "bias": 0.25, "budget": 16},
    "none": {**COSTS, "v_replay": 3.0, "cost_replay": 0.5, "bias": 1.0, "budget": 8},
    "all": {**COSTS, "v_replay": 1.1, "bias": 0.25, "budget": 4},
    "tie": {**COSTS, "v_replay": 4.0, "bias": 0.0, "budget": 8},
    "cost_bound": {**COSTS, "v_replay": 1.5, "bias": 0.35, "n": 32, "cost_cap": 0.55},
    "pool_bound": {**COSTS, "v_replay": 1.25, "bias": 0.15, "budget": 16, "pool": 8},
}


def error_curve(problem: dict[str, float]) -> Quadratic:
    """Error of a problem as a function of the share."""
    given = sources(**{name: problem[name] for name in (*COSTS, "v_replay", "bias")})
    return mse_at_budget(given, problem["budget"]) if "budget" in problem else mse_at_size(given, problem["n"])


def record() -> dict[str, Any]:
    """Return error curves and their optima, exact.

    Returns
    -------
    dict   share [101]; regimes: regime (as the library names it), given (the numbers of the problem), mse [101],
           low and high (shares allowed), best (share, mse), other (the second end of a tie, or None), worst (share, mse:
           the stationary point where the error bends down, or None), curvature, multipliers
    """
    shares = [k / (POINTS - 1) for k in range(POINTS)]
    regimes = []
    for problem in PROBLEMS.values():
        solve = optimal_replay_share if "budget" in problem else replay_share_at_size
        best, error = solve(**problem), error_curve(problem)
        peak = -error.linear / (2 * error.square) if error.square < 0 else None
        regimes.append({
            "regime": best.regime, "given": problem, "mse": [error.at(a) for a in shares],
            "low": best.low, "high": best.high, "best": {"share": best.share, "mse": best.mse},
            "other": None if best.other is None else {"share": best.other, "mse": error.at(best.other)},
            "worst": {"share": peak, "mse": error.at(peak)} if peak is not None and 0 < peak < 1 else None,
            "curvature": best.curvature, "multipliers": best.multipliers,
        })  # fmt: skip
    return {"share": shares, "regimes": regimes}
