"""Bootstrap draws of whole responses, as counts, and the cap of least error that each draw calls for.

A draw says how often each response was drawn. Statistics of one draw then share it, so that an advice that is computed in
steps (a cap, then what remains under it) is drawn anew as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from testbed.core.seeds import SeedTree
from testbed.weighting.cap_exact import finite_cap
from testbed.weighting.cap_law import CapLaw

LEVEL = 0.95
FLOOR = 0.8  # of the way from 1 to the cap of the whole batch


def response_draws(n: int, seeds: SeedTree, resamples: int) -> Iterator[Int[np.ndarray, " n"]]:
    """How often each of n responses occurs in n draws with replacement, `resamples` times.

    Examples
    --------
    >>> [int(counts.sum()) for counts in response_draws(5, SeedTree("example"), 3)]
    [5, 5, 5]
    """
    rng = seeds.numpy_generator()
    for _ in range(resamples):
        yield np.bincount(rng.integers(0, n, n), minlength=n)


def percentile_interval(draws: list[float]) -> dict[str, float | str]:
    """Percentile interval of a statistic's values on the draws."""
    half = (1 - LEVEL) / 2
    low, high = np.quantile(np.array(draws), [half, 1 - half]).tolist()
    return {"low": low, "high": high, "level": LEVEL, "method": "bootstrap over responses"}


class OwnedWeights:
    """Weights that belong to responses: one each (products), or one per token; sorted once for all draws.

    Parameters
    ----------
    values : Float[ndarray, " N"]   weights >= 0, finite
    owner : Int[ndarray, " N"]      number of the response each belongs to
    responses : int                 how many there are; also the n of the cap

    Numerics   a cap needs the weights above it only: those above a floor below the batch's own cap are tried first

    Examples
    --------
    >>> weights = OwnedWeights(np.array([0.2, 0.5, 0.7, 2.6]), np.arange(4), 4)
    >>> round(weights.cap(np.array([1, 1, 1, 1])), 6), weights.cap(np.array([2, 1, 1, 0]))
    (1.685714, 1.0)
    """

    def __init__(self, values: Float[np.ndarray, " N"], owner: Int[np.ndarray, " N"], responses: int) -> None:
        order = np.argsort(values, kind="stable")
        self.values, self.owner, self.responses = values[order], owner[order], responses
        self.sizes = np.bincount(owner, minlength=responses)
        ones = np.full(len(values), 1 / len(values))
        self.floor = 1 + (finite_cap(CapLaw(self.values, ones, None, True), responses) - 1) * FLOOR

    def cap(self, counts: Int[np.ndarray, " n"]) -> float:
        """Root of c = 1 + (n-1) B(c) on the drawn responses (O1)."""
        found = self._above(self.floor, counts)
        return found if found > self.floor else self._above(1.0, counts)

    def _above(self, floor: float, counts: Int[np.ndarray, " n"]) -> float:
        """Exact if the root is above the floor, or the floor is 1: weights below it enter the equation nowhere."""
        first = int(np.searchsorted(self.values, floor, side="right"))
        probs = counts[self.owner[first:]] / (counts @ self.sizes)
        values = np.append(floor, self.values[first:])
        if len(values) == 1:
            return 1.0 if floor == 1.0 else floor
        return finite_cap(CapLaw(values, np.append(1 - probs.sum(), probs), None, True), self.responses)
