"""Noise of a mixture of experts: the more layers route a token to other experts in the other engine, the rougher it is.

The number of layers that disagree is drawn per prefix; given it, the perturbations are those of one scale with heavy
tails. See `calibration` for the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int64
from scipy.stats import betabinom
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import MarginalLaw
from testbed.policies.noise.scale_mixture import ScaleMixture
from testbed.policies.noise.streams import NoiseStreams

Bins = Sequence[tuple[int, int]]  # ranges low..high of a count, both ends included


def flip_shares(layers: int, a: float, b: float, bins: Bins, shares: Sequence[float]) -> tuple[float, ...]:
    """Probabilities of 0..layers disagreeing layers that have the given total in every bin.

        P(n) = f(n) share_bin / f(bin) for n in the bin,   f beta-binomial(layers, a, b)

    The bins' totals are taken as they are; the beta-binomial only says how a total is spread inside its bin.

    Raises
    ------
    InputError   bins that do not cut 0..layers into consecutive ranges, or shares that are no law

    Examples
    --------
    >>> law = flip_shares(3, 1.0, 1.0, [(0, 0), (1, 3)], [0.4, 0.6])
    >>> [round(p, 12) for p in law]
    [0.4, 0.2, 0.2, 0.2]
    """
    edges = [low for low, _ in bins] + [layers + 1]
    if edges[0] != 0 or any(high + 1 != after for (_, high), after in zip(bins, edges[1:], strict=True)):
        raise InputError(f"`bins` must cut 0..{layers} into consecutive ranges", found=list(bins))
    if len(shares) != len(edges) - 1 or min(shares) < 0 or abs(math.fsum(shares) - 1) > 1e-9:
        raise InputError("`shares` must have one entry >= 0 per bin and total 1", found=list(shares))
    smooth = betabinom.pmf(np.arange(layers + 1), layers, a, b)
    parts = [smooth[lo : hi + 1] * (s / smooth[lo : hi + 1].sum()) for (lo, hi), s in zip(bins, shares, strict=True)]
    return tuple(float(p) for p in np.concatenate(parts))


@dataclass(frozen=True)
class RoutingFlips(MarginalLaw):
    """Perturbations whose scale grows with the number N of layers that route differently.

        N ~ shares,   Var(delta_j | N) = base + linear N + quadratic N^2,   Student t with df degrees of freedom given N

    Parameters
    ----------
    shares : tuple of float              law of N = 0, 1, ..., total 1
    base, linear, quadratic : float      >= 0, nats^2; base is the mismatch that no routing replay removes
    df : float                           > 2
    correlation : float                  r in [0, 1], of two perturbations of one prefix

    Raises
    ------
    InputError   a parameter out of range

    Examples
    --------
    >>> law = RoutingFlips((0.5, 0.5), base=0.04, linear=0.05, quadratic=0.0, df=4.0, correlation=0.0)
    >>> round(law.sd**2, 12), round(law.given(1, 1).sd, 12)
    (0.065, 0.3)
    """

    shares: tuple[float, ...]
    base: float
    linear: float
    quadratic: float
    df: float
    correlation: float

    def __post_init__(self) -> None:
        if min(self.base, self.linear, self.quadratic) < 0:
            raise InputError(
                "`base`, `linear` and `quadratic` must be >= 0", found=(self.base, self.linear, self.quadratic)
            )
        _ = self.mixture

    @cached_property
    def mixture(self) -> ScaleMixture:
        """The same law, with one level per number of disagreeing layers."""
        sds = tuple(math.sqrt(self.base + self.linear * n + self.quadratic * n * n) for n in range(len(self.shares)))
        return ScaleMixture(sds, self.shares, self.df, self.correlation)

    def flips(self, streams: NoiseStreams) -> Int64[Tensor, " N"]:
        """Number of disagreeing layers of each prefix."""
        return self.mixture.levels(streams)

    def given(self, low: int, high: int) -> ScaleMixture:
        """Return the law of prefixes with low..high disagreeing layers."""
        return self.mixture.given(low, high)

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, one row per stream."""
        return self.mixture.draw(streams, log_probs)

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        return self.mixture.sd

    def mgf(self, t: float) -> float:
        """E exp(t delta_j); infinite for t != 0."""
        return self.mixture.mgf(t)

    def pair_moment(self) -> float:
        """E exp(delta_i - delta_j); infinite."""
        return self.mixture.pair_moment()

    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""
        return self.mixture.tail(x)

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        return self.mixture.quantile(level)
