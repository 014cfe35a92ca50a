"""Error against cost per sample: which replay shares no other share beats in both, and which a weighted sum misses.

A weighted sum of the two objectives finds the points on the lower convex hull. At a fixed number of samples that is the
whole front. At a fixed budget the error may bend down, and then the sum only ever returns the two ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.errors import InputError
from testbed.estimators.mixing import least_share
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


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of shares; `high_open` leaves its upper end out."""

    low: float
    high: float
    high_open: bool = False

    def __contains__(self, share: float) -> bool:
        return self.low <= share < self.high if self.high_open else self.low <= share <= self.high


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Shares that no other share beats in mean squared error and in cost per sample.

    Attributes
    ----------
    pieces : tuple[Piece, ...]      the Pareto-optimal shares
    supported : tuple[Piece, ...]   those of them that minimize MSE + weight * cost for some weight >= 0
    error : Quadratic               mean squared error as a function of the share
    given : Sources
    """

    pieces: tuple[Piece, ...]
    supported: tuple[Piece, ...]
    error: Quadratic
    given: Sources

    def optimal(self, share: Number) -> bool:
        """Whether no other share is at least as good in both objectives and better in one."""
        return any(float(share) in piece for piece in self.pieces)

    def is_supported(self, share: Number) -> bool:
        """Whether some weighted sum of the objectives returns this share."""
        return any(float(share) in piece for piece in self.supported)

    def gap(self, share: Number) -> float:
        """What a Pareto-optimal share lies above the lower convex hull of all (cost, error) points.

            f(a) - ((1-a) f(0) + a f(1)) = -square a (1-a) where the error bends down, else 0

        It is the duality gap of minimizing the error under the ceiling cost(a) on the cost per sample.

        Raises
        ------
        InputError   a share that is not Pareto-optimal
        """
        a = float(share)
        if not self.optimal(a):
            raise InputError("the gap is that of a Pareto-optimal share", found=share)
        return max(-self.error.square, 0.0) * a * (1 - a)

    def at_cost(self, cost_cap: Number) -> float:
        """Epsilon-constraint form: the Pareto-optimal share of least error among those that cost at most `cost_cap`.

        Raises
        ------
        InputError   a cap below the cost of replay
        """
        if not cost_cap >= self.given.cost_replay:
            raise InputError(
                f"`cost_cap` must be at least {self.given.cost_replay:g}, the cost of replay", found=cost_cap
            )
        low = (self.given.cost_fresh - cost_cap) / self.given.saving if self.given.saving else 0.0
        share, other = least_share(self.error, min(max(low, 0.0), 1.0), 1.0)
        return share if other is None or not self.given.saving else other  # equal errors: the cheaper one

    def weighted_sum(self, weight: Number) -> tuple[float, ...]:
        """Shares that minimize MSE + weight * cost per sample; two where the ends tie.

        Raises
        ------
        InputError   a negative weight
        """
        w = at_least_zero("weight", weight)
        tilted = Quadratic(
            self.error.constant + w * self.given.cost_fresh,
            self.error.linear - w * self.given.saving,
            self.error.square,
        )
        share, other = least_share(tilted, 0.0, 1.0)
        return (share,) if other is None else (share, other)


def pareto_front(
    *,
    v_fresh: Number,
    v_replay: Number,
    cost_fresh: Number,
    cost_replay: Number,
    bias: Number,
    budget: Number | None = None,
    n: Number | None = None,
) -> ParetoFront:
    """Exact front of mean squared error against cost per sample, over all replay shares.

        a is on the front iff f(a) < f(a') for every larger share a', which costs less per sample

    Parameters
    ----------
    v_fresh, v_replay, cost_fresh, cost_replay, bias : as `testbed.estimators.mixing.optimal_replay_share`
    budget : float | None    C > 0: samples are bought until it is spent
    n : float | None         N > 0: samples, whatever they cost; exactly one of the two

    Returns
    -------
    ParetoFront

    Raises
    ------
    InputError   neither or both of `budget` and `n`; replay that costs more than fresh; numbers out of range

    Gives        error bending up: [argmin f, 1], all supported, gap 0 (K3). Bending down with vertex v: {1}, and [0, 2v - 1)
                 by reflection of f(1) (all of [0, 1] if v >= 1); of these only the ends are supported
    References   Ehrgott 2005, Multicriteria Optimization, chapters 3 and 4

    Examples
    --------
    >>> front = pareto_front(v_fresh=1, v_replay=4, cost_fresh=1, cost_replay=0.5, bias=0.1, budget=10)
    >>> [(piece.low, round(piece.high, 3), piece.high_open) for piece in front.pieces]
    [(0.0, 0.786, True), (1.0, 1.0, False)]
    >>> front.optimal(0.5), front.is_supported(0.5), round(front.gap(0.5), 12)
    (True, False, 0.035)
    """
    given = sources(v_fresh, v_replay, cost_fresh, cost_replay, bias)
    if (budget is None) == (n is None):
        raise InputError("give exactly one of `budget` and `n`", found="both" if n is not None else "neither")
    if given.saving < 0:
        raise InputError("`cost_replay` must be at most `cost_fresh`", found=f"{cost_replay} and {cost_fresh}")
    if n is None:
        error = mse_at_budget(given, above_zero("budget", budget or 0))
    else:
        error = mse_at_size(given, above_zero("n", n))
    pieces = _front(error, given.saving)
    ends = tuple(p for p in (Piece(0.0, 0.0), Piece(1.0, 1.0)) if any(p.low in piece for piece in pieces))
    bends_down = error.square < 0 and given.saving > 0
    return ParetoFront(pieces, ends if bends_down else pieces, error, given)


def _front(error: Quadratic, saving: float) -> tuple[Piece, ...]:
    share, other = least_share(error, 0.0, 1.0)
    if saving == 0:  # all shares cost the same: only the least error counts
        flat = other is not None and error.square == 0
        return (Piece(0.0, 1.0),) if flat else tuple(Piece(a, a) for a in (share, other) if a is not None)
    if error.square > 0:
        return (Piece(share, 1.0),)
    if share == 1.0 or other is not None:  # fresh is no better and costs more
        return (Piece(1.0, 1.0),)
    if error.square == 0 or error.linear >= -2 * error.square:  # increasing up to 1
        return (Piece(0.0, 1.0),)
    return Piece(0.0, -error.linear / error.square - 1.0, high_open=True), Piece(1.0, 1.0)
