"""Families of mean-one weights W with closed forms for what a cap does to them.

    B(c) = E(W - c)+          what is cut off: minus the bias of the capped weight for a constant signal (O7)
    E min(W, c) = 1 - B(c)    mean weight after the cap
    E min(W, c)^2             second moment after the cap; at c = inf it is d2 = 1 + chi2

All are functions of one cap c >= 0. They are decided against quadrature in S13 and S14, and are what a cap is optimized
over when the law of the weights is known or fitted. `Finite` takes any exact law; the other three are one-parameter
pictures of it: log-normal for long products of ratios, two-point for rare and large weights, uniform for a target
density that is linear over the behavior's.

Each quantity is a sum of non-negative terms or a difference without cancellation: the excess of a log-normal weight
keeps its digits where it is 1e-300, and that of a nearly constant weight where it is 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.special import ndtr
from torch import Tensor

from testbed.core.errors import InputError
from testbed.weighting.limits import at_least
from testbed.weighting.log_normal_excess import density, log_normal_excess, mills
from testbed.weighting.weight_family import WeightFamily

TOLERANCE = 1e-9  # on total probability and mean: weights are exponentials of summed log-probs


@dataclass(frozen=True)
class LogNormal(WeightFamily):
    """W = exp(sigma Z - sigma^2 / 2), Z standard normal; chi2 = e^{sigma^2} - 1.

    Parameters
    ----------
    sigma : float   >= 0, nats: standard deviation of log W; 0 is the constant 1

    References      Johnson, Kotz and Balakrishnan 1994, Continuous Univariate Distributions 1, section 14.3 (partial moments)

    Examples
    --------
    >>> w = LogNormal(1.2)
    >>> round(w.capped_mean(3.0), 6), round(w.excess(3.0), 6), round(w.second_moment, 6)
    (0.818278, 0.181722, 4.220696)
    """

    sigma: float | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", at_least("sigma", self.sigma, 0.0))
        if self.sigma == math.inf:
            raise InputError("`sigma` must be finite", found=self.sigma)

    @property
    def supremum(self) -> float:
        """Infinity, or 1 for the constant."""
        return math.inf if self.sigma > 0 else 1.0

    @property
    def second_moment(self) -> float:
        """E W^2 = e^{sigma^2}."""
        return math.exp(self.sigma**2) if self.sigma**2 < 709.0 else math.inf

    def _score(self, cap: float) -> float:
        return math.log(cap) / self.sigma if cap > 0 and self.sigma > 0 else -math.inf

    def _capped_mean(self, cap: float) -> float:
        return float(ndtr(self._score(cap) - self.sigma / 2)) + cap * self._tail(cap)

    def _excess(self, cap: float) -> float:
        if cap >= 1.0:
            return log_normal_excess(self._score(cap), self.sigma)
        # E(W - c)+ = 1 - c + E(c - W)+, and E(c - W)+ = c E(W - 1/c)+ : 1/W under the tilted law is log-normal again
        return (1.0 - cap) + cap * log_normal_excess(-self._score(cap), self.sigma)

    def _capped_second_moment(self, cap: float) -> float:
        z = self._score(cap)
        kept = z - 1.5 * self.sigma
        if kept >= 0:
            below = math.exp(self.sigma**2) * float(ndtr(kept))
        else:  # e^{sigma^2} phi(kept) = c phi(z - sigma/2): no factor can overflow
            below = cap * density(z - self.sigma / 2) * mills(-kept)
        return below + cap * (cap * self._tail(cap))

    def _tail(self, cap: float) -> float:
        return float(ndtr(-self._score(cap) - self.sigma / 2))


@dataclass(frozen=True)
class TwoPoint(WeightFamily):
    """W is `high` with probability p = (1 - low) / (high - low), else `low`; chi2 = (1 - low)(high - 1).

    Parameters
    ----------
    low, high : float   0 <= low <= 1 <= high < inf; low = 0 is a target that sits on a part of the behavior's support

    Examples
    --------
    >>> TwoPoint(0.0, 2.0).excess(1.5), TwoPoint(0.0, 2.0).probability
    (0.25, 0.5)
    """

    low: float | int
    high: float | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", at_least("low", self.low, 0.0, 1.0))
        object.__setattr__(self, "high", at_least("high", self.high, 1.0))
        if self.high == math.inf:
            raise InputError("`high` must be finite", found=self.high)

    @property
    def probability(self) -> float:
        """P(W = high); 0 when the two values are one."""
        return (1.0 - self.low) / (self.high - self.low) if self.high > self.low else 0.0

    @property
    def supremum(self) -> float:
        """The high value, or 1 for the constant."""
        return self.high if self.low < 1.0 else 1.0

    @property
    def second_moment(self) -> float:
        """E W^2 = 1 + (1 - low)(high - 1)."""
        return 1.0 + (1.0 - self.low) * (self.high - 1.0)

    def _capped_mean(self, cap: float) -> float:
        return cap if cap < self.low else (1.0 - self.probability) * self.low + self.probability * cap

    def _excess(self, cap: float) -> float:
        return 1.0 - cap if cap < self.low else self.probability * (self.high - cap)

    def _capped_second_moment(self, cap: float) -> float:
        return cap**2 if cap < self.low else (1.0 - self.probability) * self.low**2 + self.probability * cap**2

    def _tail(self, cap: float) -> float:
        return 1.0 if cap < self.low else self.probability


@dataclass(frozen=True)
class UniformRatio(WeightFamily):
    """W uniform on [1 - h, 1 + h]; chi2 = h^2 / 3.

    Parameters
    ----------
    half_width : float   h in [0, 1]; the target's density over a uniform behavior is 1 + h (2u - 1)

    Examples
    --------
    >>> w = UniformRatio(0.6)
    >>> round(w.excess(1.0), 12), round(w.second_moment, 12)
    (0.15, 1.12)
    """

    half_width: float | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "half_width", at_least("half_width", self.half_width, 0.0, 1.0))

    @property
    def supremum(self) -> float:
        """Largest value, 1 + h."""
        return 1.0 + self.half_width

    @property
    def second_moment(self) -> float:
        """E W^2 = 1 + h^2 / 3."""
        return 1.0 + self.half_width**2 / 3.0

    def _capped_mean(self, cap: float) -> float:
        return 1.0 - self._excess(cap) if cap > 1.0 - self.half_width else cap

    def _excess(self, cap: float) -> float:
        room = self.half_width - (cap - 1.0)  # 1 + h - c, exact to rounding for narrow laws too
        return room**2 / (4.0 * self.half_width) if room < 2.0 * self.half_width else 1.0 - cap

    def _capped_second_moment(self, cap: float) -> float:
        low, above = 1.0 - self.half_width, self._tail(cap)
        return (1.0 - above) * (cap**2 + cap * low + low**2) / 3.0 + above * cap**2

    def _tail(self, cap: float) -> float:
        return min((self.half_width - (cap - 1.0)) / (2.0 * self.half_width), 1.0) if self.half_width > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Finite(WeightFamily):
    """Any finite law of mean one: weights of the support points and their probabilities under the behavior.

    Parameters
    ----------
    values : Float[Tensor, " N"] or sequence   weights >= 0, finite
    probs : Float[Tensor, " N"] or sequence    >= 0, total 1; sum of probs * values is 1 (the behavior covers the target)

    Raises
    ------
    InputError   lengths that differ; no law; a mean other than 1 by more than 1e-9

    Examples
    --------
    >>> w = Finite([0.5, 1.0, 3.0], [0.5, 0.375, 0.125])
    >>> w.capped_mean(2.0), w.excess(2.0), w.capped_second_moment(2.0), w.tail(1.0)
    (0.875, 0.125, 1.0, 0.125)
    """

    values: Float[Tensor, " N"] | Sequence[float]
    probs: Float[Tensor, " N"] | Sequence[float]

    def __post_init__(self) -> None:
        w = torch.as_tensor(self.values, dtype=torch.float64).detach()
        p = torch.as_tensor(self.probs, dtype=torch.float64).detach()
        if w.dim() != 1 or w.shape != p.shape:
            raise InputError(
                "`values` and `probs` must be two lists of one length", found=f"{tuple(w.shape)} and {tuple(p.shape)}"
            )
        w, p = w[p != 0], p[p != 0]
        if not bool((torch.isfinite(w) & (w >= 0)).all()):
            raise InputError("`values` must be finite and >= 0", found=w[~(torch.isfinite(w) & (w >= 0))].tolist()[:4])
        if bool((p < 0).any()) or not abs(float(p.sum()) - 1.0) <= TOLERANCE:
            raise InputError("`probs` must be >= 0 with total 1", found=f"total {float(p.sum()):.12g}")
        if not abs(float((p * w).sum()) - 1.0) <= TOLERANCE:
            raise InputError(
                "the mean of the weights must be 1",
                found=f"{float((p * w).sum()):.12g}",
                hint="does the behavior cover the target? divide by the mean for a self-normalized law",
            )
        object.__setattr__(self, "values", w)
        object.__setattr__(self, "probs", p)

    def _mean(self, of: Tensor) -> float:
        return float((torch.as_tensor(self.probs) * of).sum())

    @property
    def _w(self) -> Tensor:
        return torch.as_tensor(self.values)

    @property
    def supremum(self) -> float:
        """Largest value of positive probability."""
        return float(self._w.max())

    @property
    def second_moment(self) -> float:
        """E W^2, a sum over the support."""
        return self._mean(self._w.square())

    def _capped_mean(self, cap: float) -> float:
        return self._mean(self._w.clamp(max=cap))

    def _excess(self, cap: float) -> float:
        return self._mean((self._w - cap).clamp(min=0.0))

    def _capped_second_moment(self, cap: float) -> float:
        return self._mean(self._w.clamp(max=cap).square())

    def _tail(self, cap: float) -> float:
        return self._mean((self._w > cap).double())
