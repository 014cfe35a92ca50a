"""The cap of least mean squared error for any signal, by search over everything that can be a minimum (O2).

Between two neighboring weights the error is a convex parabola in the cap, so each gap holds at most one stationary
point. The slope jumps at the weights themselves: one can be a minimum without being a root of anything, and several
minima can stand side by side. A root-finder started somewhere finds one of them, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from testbed.weighting.cap_law import CapLaw, cap_law, check_n, law_error
from testbed.weighting.limits import at_least

CLOSE = 1e-9  # candidates this near the best are compared again with centered sums
MOST_COMPARED = 64
TIE = 1e-15


@dataclass(frozen=True, slots=True)
class CapMinimum:
    """A local minimum of the mean squared error in the cap.

    Attributes
    ----------
    cap : float    inf where no cap acts
    mse : float
    kind : str     "root" (stationary between two weights), "atom" (a weight where the slope jumps from - to +),
                   "zero" (the estimator 0) or "none" (no cap)
    """

    cap: float
    mse: float
    kind: str


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parabolas: piece j is the error for caps between knots j and j + 1, where the weights above are those >= knot j+1.

        mse(c) = |A - c F|^2 + (S + c^2 Q - |M + c F|^2) / n

    with A, F, Q = E[W f], E[f], E|f|^2 over the weights above, and S, M = E[W^2 |f|^2], E[W f] over those below.
    """

    knots: Float[np.ndarray, " K"]
    n: float
    above: Float[np.ndarray, "J D"]  # A
    mass: Float[np.ndarray, "J D"]  # F
    power: Float[np.ndarray, " J"]  # Q
    kept: Float[np.ndarray, "J D"]  # M
    square: Float[np.ndarray, " J"]  # S

    def slope(self, piece: np.ndarray, cap: np.ndarray) -> Float[np.ndarray, " R"]:
        """Half the slope of the error at these caps on these pieces."""
        f, c = self.mass[piece], cap[:, None]
        lost, mean = self.above[piece] - c * f, self.kept[piece] + c * f
        return (cap * self.power[piece] - (mean * f).sum(1)) / self.n - (lost * f).sum(1)

    def error(self, piece: np.ndarray, cap: np.ndarray) -> Float[np.ndarray, " R"]:
        """Mean squared error at these caps on these pieces."""
        f, c = self.mass[piece], cap[:, None]
        lost, mean = self.above[piece] - c * f, self.kept[piece] + c * f
        second = self.square[piece] + cap**2 * self.power[piece]
        return (lost**2).sum(1) + (second - (mean**2).sum(1)) / self.n

    def stationary(self) -> Float[np.ndarray, " J"]:
        """Stationary point of each parabola, wherever it lies; NaN where the error is constant."""
        bend = (self.mass**2).sum(1) * (1.0 - 1.0 / self.n) + self.power / self.n
        pull = (self.above * self.mass).sum(1) + (self.kept * self.mass).sum(1) / self.n
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(bend > 0, pull / bend, np.nan)


def pieces(law: CapLaw, n: float | int) -> Pieces:
    """Cut the error at the distinct weights."""
    f = np.ones((len(law.values), 1)) if law.signal is None else law.signal
    w, p = law.values[:, None], law.probs[:, None]
    atoms, first = np.unique(law.values, return_index=True)
    power = (f**2).sum(1, keepdims=True)

    def from_each(x: np.ndarray) -> np.ndarray:
        return np.add.reduceat(x, first, axis=0)[::-1].cumsum(0)[::-1]

    def before_each(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros((1, x.shape[1])), np.add.reduceat(x, first, axis=0).cumsum(0)[:-1]])

    return Pieces(
        knots=np.concatenate([[0.0], atoms]),
        n=float(n),
        above=from_each(p * w * f),
        mass=from_each(p * f),
        power=from_each(p * power)[:, 0],
        kept=before_each(p * w * f),
        square=before_each(p * w**2 * power)[:, 0],
    )


def signal_cap(law: CapLaw, n: float | int) -> float:
    """Return the best cap: least error over all roots, all weights, 0 and no cap.

    Returns
    -------
    float   >= 0; inf where no cap is best, also where the best one never acts. 0 says that the estimator 0 has the least
            error, which the constant signal never does

    Numerics     the error of each candidate from running sums, O(N log N); those within 1e-9 of the best are compared
                 again with centered sums

    Examples
    --------
    >>> signal_cap(cap_law([0.0, 2.0], [0.5, 0.5]), 8)
    1.7777777777777777
    >>> signal_cap(cap_law([0.0, 1.0, 5.0], [0.4, 0.5, 0.1], signal=[1.0, 1.0, 0.1]), 10)  # noise sits elsewhere
    inf
    """
    cut = pieces(law, n)
    index = np.arange(len(cut.knots) - 1)
    low, high = cut.knots[:-1], cut.knots[1:]
    inner = np.clip(np.nan_to_num(cut.stationary(), nan=0.0), low, high)
    caps = np.concatenate([inner, high, low[:1]])
    errors = cut.error(np.concatenate([index, index, index[:1]]), caps)
    near = np.argsort(errors, kind="stable")[:MOST_COMPARED]
    near = near[errors[near] <= errors[near[0]] + CLOSE * (abs(errors[near[0]]) + cut.square[-1] / n)]
    exact = np.array([law_error(law, float(c), n).mse for c in caps[near]])
    best = float(caps[near][exact <= exact.min() * (1.0 + TIE)].max())  # of equals, the cap that acts least
    return best if best < law.values[-1] else float("inf")


def local_minima(weights: Any, probs: Any = None, *, n: float | int, signal: Any = None) -> tuple[CapMinimum, ...]:
    """All strict local minima of the exact error in the cap, from small to large caps.

    A root is a stationary point between two weights; an atom is a weight with left slope < 0 < right slope.

    Parameters
    ----------
    weights, probs, signal   as in `cap_law`
    n : float                draws, >= 1

    Returns
    -------
    tuple of CapMinimum   the last is of kind "none" when the error still falls where the cap stops acting

    Examples
    --------
    >>> [(m.kind, round(m.cap, 4)) for m in local_minima([0.0, 2.0], [0.5, 0.5], n=8)]
    [('root', 1.7778)]
    """
    law, size = cap_law(weights, probs, signal), check_n(n)
    cut = pieces(law, size)
    index, low, high = np.arange(len(cut.knots) - 1), cut.knots[:-1], cut.knots[1:]
    stationary, wide = cut.stationary(), high > low
    found = [(float(c), "root") for c in stationary[wide & (stationary > low) & (stationary < high)]]
    after, into = (
        cut.slope(index, low),
        cut.slope(index, high),
    )  # to the right of each low end, to the left of each high
    first = int(np.argmax(wide))
    if stationary[first] <= low[first]:
        found.append((0.0, "zero"))
    kinks = (into[:-1] < 0) & (after[1:] > 0) & wide[:-1]
    found += [(float(c), "atom") for c in high[:-1][kinks]]
    if stationary[-1] >= high[-1] or not wide[-1]:
        found.append((float("inf"), "none"))
    return tuple(CapMinimum(c, law_error(law, c, size).mse, kind) for c, kind in sorted(found))


def error_slopes(
    weights: Any, probs: Any = None, *, cap: float | int, n: float | int, signal: Any = None
) -> tuple[float, float]:
    """Left and right derivative of the exact mean squared error in the cap (equal unless the cap is a weight).

        2 (-(E[(W-c)+ f] . E[f; W > c]) + (c E[|f|^2; W > c] - E[min(W, c) f] . E[f; W > c]) / n)

    with W >= c in place of W > c on the left.

    Examples
    --------
    >>> error_slopes([0.0, 2.0], [0.5, 0.5], cap=2.0, n=8)
    (0.125, 0.0)
    """
    law, c, size = cap_law(weights, probs, signal), at_least("cap", cap, 0.0), check_n(n)
    f = np.ones((len(law.values), 1)) if law.signal is None else law.signal
    p = law.probs[:, None]
    lost = (p * np.maximum(law.values - c, 0.0)[:, None] * f).sum(0)
    mean = (p * np.minimum(law.values, c)[:, None] * f).sum(0)

    def one_side(over: np.ndarray) -> float:
        if not over.any():
            return 0.0
        moved = (p * f)[over].sum(0)
        power = float((p * f**2)[over].sum())
        return 2.0 * float((c * power - mean @ moved) / size - lost @ moved)

    return one_side(law.values >= c), one_side(law.values > c)
