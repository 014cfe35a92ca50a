"""What a cap does to a weight W >= 0 of mean one, as functions of the cap; the laws themselves are in `weight_families.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from testbed.weighting.limits import at_least


class WeightFamily(ABC):
    """The law of a weight W >= 0 with E W = 1."""

    @property
    @abstractmethod
    def supremum(self) -> float:
        """Essential supremum of W: the smallest cap that never acts."""

    @property
    @abstractmethod
    def second_moment(self) -> float:
        """Second moment d2 = E W^2 (inf where it leaves float64)."""

    def capped_mean(self, cap: float | int) -> float:
        """Mean of the capped weight.

            E min(W, c) = 1 - E(W - c)+

        Parameters
        ----------
        cap : float   c >= 0, dimensionless; inf = no cap

        Returns
        -------
        float         in [0, min(1, c)]

        Raises
        ------
        InputError   a cap below 0 or NaN
        Gives        concave in the cap, with slope `tail` (S14)

        Examples
        --------
        >>> from testbed.weighting.weight_families import TwoPoint
        >>> TwoPoint(0.5, 4.5).capped_mean(2)
        0.6875
        """
        c = at_least("cap", cap, 0.0)
        return 1.0 if c >= self.supremum else self._capped_mean(c)

    def excess(self, cap: float | int) -> float:
        """Mean of what a cap cuts off, B(c) = E(W - c)+.

        Arguments and errors as `capped_mean`.

        Returns
        -------
        float        in [max(0, 1 - c), 1], with full relative precision far out in the tail

        Examples
        --------
        >>> from testbed.weighting.weight_families import LogNormal, UniformRatio
        >>> UniformRatio(1.0).excess(1.5)
        0.0625
        >>> f"{LogNormal(1.0).excess(1e12):.4e}"
        '7.5187e-164'
        """
        c = at_least("cap", cap, 0.0)
        return 0.0 if c >= self.supremum else self._excess(c)

    def capped_second_moment(self, cap: float | int) -> float:
        """Second moment of the capped weight, E min(W, c)^2.

        Arguments and errors as `capped_mean`.

        Returns
        -------
        float        in [0, min(c, d2)]; at most c because min(W, c)^2 <= c W

        Examples
        --------
        >>> from testbed.weighting.weight_families import TwoPoint
        >>> TwoPoint(0.5, 4.5).capped_second_moment(2), TwoPoint(0.5, 4.5).second_moment
        (0.71875, 2.75)
        """
        c = at_least("cap", cap, 0.0)
        return self.second_moment if c >= self.supremum else self._capped_second_moment(c)

    def tail(self, cap: float | int) -> float:
        """Probability P(W > c) that a cap acts: minus the right-hand slope of the excess in the cap.

        Examples
        --------
        >>> from testbed.weighting.weight_families import TwoPoint
        >>> TwoPoint(0.5, 4.5).tail(0.5), TwoPoint(0.5, 4.5).tail(4.5)
        (0.125, 0.0)
        """
        c = at_least("cap", cap, 0.0)
        return 0.0 if c >= self.supremum else self._tail(c)

    # each of these is asked for 0 <= cap < supremum only
    @abstractmethod
    def _capped_mean(self, cap: float) -> float: ...

    @abstractmethod
    def _excess(self, cap: float) -> float: ...

    @abstractmethod
    def _capped_second_moment(self, cap: float) -> float: ...

    @abstractmethod
    def _tail(self, cap: float) -> float: ...
