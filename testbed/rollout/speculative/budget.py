"""How many candidates a round checks: fixed, by concurrency, or as many as pay for the time of the pass.

A pass over few tokens takes as long as reading the weights, whatever their number; beyond the hardware's peak C it takes
longer with each. The fewer responses are unfinished, the more candidates each may have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.errors import InputError


class Budget(ABC):
    """Candidates per response for the next round."""

    @abstractmethod
    def nodes(self, active: int, gains: Sequence[float] | None) -> int:
        """Number of candidates per response.

        Parameters
        ----------
        active : int                          unfinished responses B, >= 1
        gains : sequence of float | None      F(1), F(2), ...: estimated accepted drafts per response for the 1, 2, ... largest
                                              path weights, in the last round that drafted with this B; None before there is one
        """


@dataclass(frozen=True, slots=True)
class FixedBudget(Budget):
    """The same number in every round.

    Raises
    ------
    InputError   a negative number
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError("`nodes` must be >= 0", found=self.count)

    def nodes(self, active: int, gains: Sequence[float] | None) -> int:
        """Return the number."""
        return self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyBudget(Budget):
    """As many as keep the pass at the hardware's peak: the tokens of a pass, roots included, are shared evenly.

        N = clip(floor(C_peak / B) - 1, least, most)

    Parameters
    ----------
    peak : int           C_peak, tokens of a pass (see `staircase.measured_peak`)
    least, most : int    0 <= least <= most

    Raises
    ------
    InputError   numbers out of range

    Examples
    --------
    >>> rule = ConcurrencyBudget(peak=64, most=10)
    >>> [rule.nodes(active, None) for active in (1, 8, 32, 100)]
    [10, 7, 1, 0]
    """

    peak: int
    least: int = 0
    most: int = 10

    def __post_init__(self) -> None:
        if self.peak < 1 or not 0 <= self.least <= self.most:
            found = f"peak={self.peak}, least={self.least}, most={self.most}"
            raise InputError("`peak` must be >= 1 and 0 <= `least` <= `most`", found=found)

    def nodes(self, active: int, gains: Sequence[float] | None) -> int:
        """Share the peak."""
        return min(max(self.peak // active - 1, self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalBudget(Budget):
    """The number with the most tokens per second, read off measured pass times; 0 turns drafting off.

        N* = argmax_N  B (1 + F(N)) / (T(B, N + 1) + draft time if N > 0)

    The times need not be convex, so all N are compared. For B between two measured ones, the times of the nearest one above
    (beyond the last: of the last).

    Parameters
    ----------
    seconds : mapping of B to sequence of float   T(B, 1), T(B, 2), ...: seconds of a pass over so many tokens per response
    drafting : float                              seconds of a draft, >= 0

    Raises
    ------
    InputError   no times, or times that are not positive

    Examples
    --------
    >>> flat_then_steep = MarginalBudget(seconds={1: [1.0, 1.0, 1.1, 1.8]})
    >>> flat_then_steep.nodes(1, [0.6, 0.9, 1.0]), flat_then_steep.nodes(1, [0.0, 0.0, 0.0])
    (2, 0)
    """

    seconds: Mapping[int, Sequence[float]]
    drafting: float = 0.0

    def __post_init__(self) -> None:
        times = [t for row in self.seconds.values() for t in row]
        if not times or not all(self.seconds.values()) or min(times) <= 0 or self.drafting < 0:
            raise InputError("`seconds` must hold positive times for at least one B", found=dict(self.seconds))

    def times(self, active: int) -> Sequence[float]:
        """Pass times that stand for this many responses."""
        return self.seconds[min((b for b in self.seconds if b >= active), default=max(self.seconds))]

    def nodes(self, active: int, gains: Sequence[float] | None) -> int:
        """Scan; before there are gains, try as many as were timed."""
        times = self.times(active)
        if gains is None:
            return len(times) - 1
        count = min(len(times) - 1, len(gains))
        rates = [1.0 / times[0]]
        rates += [(1.0 + gains[k - 1]) / (times[k] + self.drafting) for k in range(1, count + 1)]
        return max(range(count + 1), key=lambda k: rates[k])
