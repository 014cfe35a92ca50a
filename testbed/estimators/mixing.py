"""How much of a batch should be replay: the share that minimizes the mean squared error, with its multipliers.

Replay costs less and varies more, and it may be biased. At a fixed budget the error is a quadratic in the share; where it
bends down the optimum is a corner, and the stationary point is the *worst* mixture.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from testbed.core.errors import InputError
from testbed.estimators.replay_mse import (
    Number,
    Quadratic,
    Sources,
    above_zero,
    at_least_zero,
    mse_at_budget,
    mse_at_size,
    sources,
)

ROUNDING = 64 * sys.float_info.epsilon  # of the quadratic's size: what the two ends may differ by and still tie
REGIMES = {"at_least_0": "none", "at_most_1": "all", "cost_cap": "cost_bound", "pool": "pool_bound", "": "interior"}


@dataclass(frozen=True, slots=True)
class ReplayShare:
    """The best share of replay and the certificate that it is.

    Attributes
    ----------
    share : float                  a in [0, 1]
    regime : str                   interior | none (a = 0) | all (a = 1) | cost_bound | pool_bound | tie
    multipliers : dict             at_least_0, at_most_1, cost_cap, pool: drop of the error per unit by which the constraint
                                   is loosened; >= 0, and 0 where the constraint does not bind
    mse : float                    mean squared error at the share
    n_samples : float              samples in total; inf where all is replay that costs nothing
    other : float | None           a tie: the other end, equally good (everything between is too if the error is flat)
    curvature : float              coefficient of a^2; <= 0: the optimum is an end, and the certificate is the comparison
    low, high : float              least and largest share the constraints allow
    """

    share: float
    regime: str
    multipliers: dict[str, float]
    mse: float
    n_samples: float
    other: float | None
    curvature: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Allowed:
    """Shares the constraints allow, and which constraint makes each end."""

    low: float
    high: float
    low_rule: str
    high_rule: str


def optimal_replay_share(
    *,
    v_fresh: Number,
    v_replay: Number,
    cost_fresh: Number,
    cost_replay: Number,
    bias: Number,
    budget: Number,
    cost_cap: Number | None = None,
    pool: Number | None = None,
) -> ReplayShare:
    """Replay share that minimizes the mean squared error of a pooled mean at a fixed budget.

        MSE(a) = a^2 b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f) / C,   D_v = v_r - v_f,   D_c = c_f - c_r
        a* = clip((D_c v_f - D_v c_f) / (2 (C b^2 - D_v D_c)), low, high) if C b^2 > D_v D_c, else the better end

    Parameters
    ----------
    v_fresh, v_replay : float         variance of one sample, >= 0
    cost_fresh, cost_replay : float   cost of one sample, fresh > 0, replay >= 0
    bias : float                      b, what correction leaves in the mean of a replayed sample
    budget : float                    C > 0, in units of the costs
    cost_cap : float | None           most one sample may cost on average, a c_r + (1-a) c_f
    pool : float | None               most samples that can be replayed, a N

    Returns
    -------
    ReplayShare

    Raises
    ------
    InputError   a number out of range; `cost_cap` below every mixture's cost; a pool too small to meet it

    Assumes      independent samples, exactly a N of them replayed (a coin per sample adds a(1-a) b^2 / N), one unweighted
                 mean, N real. A replayed sample drawn twice is not independent
    Gives        the global minimum (K1, K7). Without bias, pool or cost cap it is an end: 0 or 1 (K4)
    References   Boyd and Vandenberghe 2004, section 5.5 (KKT conditions)

    Examples
    --------
    >>> best = optimal_replay_share(v_fresh=1, v_replay=1.25, cost_fresh=1, cost_replay=0.25, bias=0.25, budget=16)
    >>> best.share, best.regime, best.n_samples
    (0.3076923076923077, 'interior', 20.8)
    >>> best = optimal_replay_share(v_fresh=1, v_replay=2, cost_fresh=1, cost_replay=0.5, bias=1, budget=10, cost_cap=0.75)
    >>> best.share, best.regime, round(best.multipliers["cost_cap"], 12)
    (0.5, 'cost_bound', 2.0)
    """
    given = sources(v_fresh, v_replay, cost_fresh, cost_replay, bias)
    total = above_zero("budget", budget)

    high = 1.0
    if pool is not None and at_least_zero("pool", pool) * given.cost_replay < total:
        high = pool * given.cost_fresh / (total + pool * (given.cost_fresh - given.cost_replay))
    allowed = allowed_shares(given, cost_cap, high)
    return _solved(mse_at_budget(given, total), given, allowed, total, None)


def replay_share_at_size(
    *,
    v_fresh: Number,
    v_replay: Number,
    cost_fresh: Number,
    cost_replay: Number,
    bias: Number,
    n: Number,
    cost_cap: Number | None = None,
    pool: Number | None = None,
) -> ReplayShare:
    """Replay share that minimizes the mean squared error of N samples, under a ceiling on the cost of one.

        MSE(a) = a^2 b^2 + (a v_r + (1-a) v_f) / N;   a* = max(clip(-D_v / (2 N b^2), 0, 1), (c_f - tau) / D_c)
        multiplier of the ceiling: (2 a b^2 + D_v / N) / D_c

    Parameters
    ----------
    n : float                N > 0 samples, fixed
    cost_cap : float | None  tau, most one sample may cost on average
    (the others as `optimal_replay_share`)

    Returns
    -------
    ReplayShare

    Raises
    ------
    InputError   as `optimal_replay_share`

    Assumes      as `optimal_replay_share`
    Gives        the global minimum (K2); without a ceiling, and with v_r >= v_f, there is no reason to replay at all

    Examples
    --------
    >>> common = dict(v_fresh=1, v_replay=2, cost_fresh=1, cost_replay=0.5, bias=0.5, n=4)
    >>> replay_share_at_size(**common).share, replay_share_at_size(**common, cost_cap=0.75).share
    (0.0, 0.5)
    >>> replay_share_at_size(**common, cost_cap=0.25)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `cost_cap` must be at least 0.5, the cost of the cheapest mixture; found 0.25
    """
    given = sources(v_fresh, v_replay, cost_fresh, cost_replay, bias)
    count = above_zero("n", n)
    high = 1.0 if pool is None else at_least_zero("pool", pool) / count
    allowed = allowed_shares(given, cost_cap, high)
    return _solved(mse_at_size(given, count), given, allowed, None, count)


def allowed_shares(given: Sources, cost_cap: Number | None, pool_share: float = 1.0) -> Allowed:
    """Interval of shares that meet a ceiling on the cost of one sample, and a largest share.

    Raises
    ------
    InputError   no share meets the ceiling, or none that the pool can supply

    Examples
    --------
    >>> allowed_shares(sources(1, 2, 1, 0.5, 0), 0.75)
    Allowed(low=0.5, high=1.0, low_rule='cost_cap', high_rule='at_most_1')
    """
    low, high, low_rule, high_rule = 0.0, 1.0, "at_least_0", "at_most_1"
    if pool_share < high:
        high, high_rule = pool_share, "pool"
    if cost_cap is not None:
        cheapest = min(given.cost_fresh, given.cost_replay)
        if not cost_cap >= cheapest:
            raise InputError(
                f"`cost_cap` must be at least {cheapest:g}, the cost of the cheapest mixture", found=cost_cap
            )
        saving = given.cost_fresh - given.cost_replay
        bound = (given.cost_fresh - cost_cap) / saving if saving != 0 else 0.0
        if saving > 0 and bound > low:
            low, low_rule = min(bound, 1.0), "cost_cap"
        if saving < 0 and bound < high:
            high, high_rule = max(bound, 0.0), "cost_cap"
    if low > high:
        raise InputError(
            f"`pool` must allow the share {low:.6g} that the cost cap asks for", found=f"at most {high:.6g}"
        )
    return Allowed(low, high, low_rule, high_rule)


def least_share(f: Quadratic, low: float, high: float) -> tuple[float, float | None]:
    """Minimizer of a quadratic on [low, high], and the other end where both are equally good.

        clip(-linear / (2 square), low, high) if square > 0, else the end with the smaller value

    Examples
    --------
    >>> least_share(Quadratic(0.0, -1.0, 1.0), 0.0, 1.0), least_share(Quadratic(0.0, 1.0, -1.0), 0.0, 1.0)
    ((0.5, None), (0.0, 1.0))
    """
    if f.square > 0:
        return min(max(-f.linear / (2 * f.square), low), high), None
    rise = (high - low) * (f.linear + f.square * (high + low))
    if high > low and abs(rise) <= ROUNDING * f.size:
        return low, high
    return (low, None) if rise >= 0 else (high, None)


def _solved(f: Quadratic, given: Sources, allowed: Allowed, budget: float | None, n: float | None) -> ReplayShare:
    share, other = least_share(f, allowed.low, allowed.high)
    cost = share * given.cost_replay + (1 - share) * given.cost_fresh
    samples = n if n is not None else budget / cost if budget is not None and cost > 0 else math.inf
    slope, rule = f.linear + 2 * share * f.square, ""
    if share == allowed.low and (slope > 0 or share < allowed.high):
        rule = allowed.low_rule
    elif share == allowed.high:
        rule = allowed.high_rule
    multipliers = {"at_least_0": 0.0, "at_most_1": 0.0, "cost_cap": 0.0, "pool": 0.0}
    if rule:
        replayed = n if n is not None else samples * given.cost_fresh / cost if cost > 0 else math.inf  # d(a N)/da
        per_unit = {
            "at_least_0": 1.0,
            "at_most_1": -1.0,
            "cost_cap": given.cost_fresh - given.cost_replay,
            "pool": -replayed,
        }
        multipliers[rule] = max(slope / per_unit[rule], 0.0)
    mse = f.constant + share * (f.linear + share * f.square)
    regime = REGIMES[rule] if other is None else "tie"
    return ReplayShare(share, regime, multipliers, mse, samples, other, f.square, allowed.low, allowed.high)
