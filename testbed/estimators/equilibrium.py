"""The replay share that is optimal for the staleness it causes: replay more, and what is replayed gets older and varies more.

A share is an equilibrium if it is the best one for the variance that it produces itself. There may be none, one or several,
and iterating from a guess cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from testbed.core.errors import InputError
from testbed.estimators.mixing import optimal_replay_share
from testbed.estimators.replay_mse import Number, at_least_zero

SETTLED = 1e-9  # a share this near to its own best response is an equilibrium; across a jump the distance stays large


@dataclass(frozen=True, slots=True)
class Equilibria:
    """All equilibrium shares that a search found, and what is guaranteed without a search.

    Attributes
    ----------
    shares : tuple[float, ...]      equilibria in increasing order
    verdict : str                   none | one | several
    jumps : tuple[float, ...]       where the best response leaps over the share: it changes sides without meeting it
    convex_everywhere : bool        C b^2 > (V(a) - v_f) D_c at every grid point: an equilibrium exists
    bias_dominates : bool           C b^2 c_f >= D_c^2 v_f: a larger variance never asks for more replay
    nondecreasing : bool            V on the grid
    existence_guaranteed : bool     convex_everywhere
    uniqueness_guaranteed : bool    convex_everywhere, bias_dominates and nondecreasing
    """

    shares: tuple[float, ...]
    verdict: str
    jumps: tuple[float, ...]
    convex_everywhere: bool
    bias_dominates: bool
    nondecreasing: bool
    existence_guaranteed: bool
    uniqueness_guaranteed: bool


def equilibrium_share(
    *,
    v_replay: Callable[[float], Number],
    v_fresh: Number,
    cost_fresh: Number,
    cost_replay: Number,
    bias: Number,
    budget: Number,
    cost_cap: Number | None = None,
    pool: Number | None = None,
    grid: int = 1001,
) -> Equilibria:
    """Find the shares a with a = optimal_replay_share(v_replay = V(a)).

    Parameters
    ----------
    v_replay : a -> float      V, variance of one replayed sample when a is the share in use; >= 0, finite on [0, 1]
    v_fresh, cost_fresh, cost_replay, bias, budget, cost_cap, pool : as `optimal_replay_share`
    grid : int                 points of [0, 1] searched, >= 3; more are added where the error stops bending up

    Returns
    -------
    Equilibria

    Raises
    ------
    InputError   a grid too small; V negative or not finite somewhere; what `optimal_replay_share` raises

    Assumes      V is continuous and what happens between grid points is monotone: the search is fine, not exhaustive
    Gives        existence if C b^2 > (V(a) - v_f) D_c on [0, 1]; uniqueness if moreover V is nondecreasing and
                 C b^2 c_f >= D_c^2 v_f (K5; the latter without cost cap and pool, which only clip)
    References   intermediate value theorem; Brent 1973, chapter 4 (root finding)

    Examples
    --------
    >>> found = equilibrium_share(
    ...     v_replay=lambda a: 1 + a, v_fresh=1, cost_fresh=1, cost_replay=0.5, bias=0.5, budget=8)
    >>> found.verdict, [round(a, 9) for a in found.shares], found.uniqueness_guaranteed
    ('one', [0.102084238], True)
    """
    if grid < 3:
        raise InputError("`grid` must be >= 3", found=grid)
    saving = float(cost_fresh) - float(cost_replay)

    def variance(share: float) -> float:
        return at_least_zero("v_replay(share)", v_replay(share))

    def ahead(share: float) -> float:
        best = optimal_replay_share(
            v_fresh=v_fresh,
            v_replay=variance(share),
            cost_fresh=cost_fresh,
            cost_replay=cost_replay,
            bias=bias,
            budget=budget,
            cost_cap=cost_cap,
            pool=pool,
        )
        return best.share - share

    def bend(share: float) -> float:
        return float(budget) * float(bias) ** 2 - (variance(share) - float(v_fresh)) * saving

    points = np.linspace(0.0, 1.0, grid)
    bends = np.array([bend(a) for a in points])
    points = _with_turns(points, bends, bend)
    values = np.array([variance(a) for a in points])
    shares, jumps = _crossings(points, ahead)
    convex = bool((bends > 0).all())
    dominates = float(budget) * float(bias) ** 2 * float(cost_fresh) >= saving**2 * float(v_fresh)
    nondecreasing = bool((np.diff(values) >= -1e-12 * values.max()).all())
    verdict = "none" if not shares else "one" if len(shares) == 1 else "several"
    unique = convex and dominates and nondecreasing
    return Equilibria(shares, verdict, jumps, convex, dominates, nondecreasing, convex, unique)


def _with_turns(points: np.ndarray, bends: np.ndarray, bend: Callable[[float], float]) -> np.ndarray:
    """Add points close to where the error stops bending up: the best response is steep there, and leaps."""
    near = np.concatenate([-np.logspace(-3, -13, 21), [0.0], np.logspace(-13, -3, 21)])
    turns = [_zero(bend, points[i], points[i + 1]) for i in np.nonzero(np.diff(np.sign(bends)))[0]]
    return np.unique(np.clip(np.concatenate([points, *[turn + near for turn in turns]]), 0.0, 1.0))


def _crossings(points: np.ndarray, ahead: Callable[[float], float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shares where the best response meets the share, and those where it leaps over it."""
    gaps = np.array([ahead(a) for a in points])
    met, jumps = [float(a) for a in points[gaps == 0]], []
    for i in np.nonzero(gaps[:-1] * gaps[1:] < 0)[0]:
        root = _zero(ahead, points[i], points[i + 1])
        (met if meets(ahead, root) else jumps).append(root)
    sizes = np.abs(gaps)
    lowest = (sizes[1:-1] < sizes[:-2]) & (sizes[1:-1] <= sizes[2:]) & (gaps[:-2] * gaps[2:] > 0)
    for i in np.nonzero(lowest)[0] + 1:  # the response may touch the share without crossing it
        low, high = float(points[i - 1]), float(points[i + 1])
        touch: Any = minimize_scalar(
            lambda a: abs(ahead(a)), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
        )
        if meets(ahead, float(touch.x)):
            met.append(float(touch.x))
    distinct = [a for i, a in enumerate(sorted(met)) if i == 0 or a - sorted(met)[i - 1] > 1e-8]
    return tuple(distinct), tuple(sorted(jumps))


def _zero(f: Callable[[float], float], low: float, high: float) -> float:
    found: Any = brentq(f, low, high, xtol=1e-14)
    return float(found)


def meets(ahead: Callable[[float], float], share: float) -> bool:
    """Whether a share is its own best response, to 1e-9; at a leap the distance stays large.

    Examples
    --------
    >>> meets(lambda a: 0.5 - a, 0.5), meets(lambda a: (a < 0.5) - a, 0.5)
    (True, False)
    """
    return abs(ahead(share)) <= SETTLED
