"""Noise whose scale is the prefix's own: calm and rough prefixes, Gaussian within each.

An engine's error at a prefix depends on what happened there (a router chose other experts, a sum was taken in another
order), so the logits of one prefix share a scale. Heavy tails then come from rough prefixes and survive in differences of
logits, whereas independent heavy-tailed logits would look more normal there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtr, stdtr
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import MarginalLaw, require_correlation, require_level, require_scale
from testbed.policies.noise.streams import NoiseStreams

MASS = 1e-9  # shares must sum to 1 within this


@dataclass(frozen=True, slots=True)
class ScaleMixture(MarginalLaw):
    """Equicorrelated Gaussian perturbations times a scale drawn once per prefix.

        delta_j = tau (sqrt(r) c + sqrt(1 - r) z_j),   c, z_j ~ N(0, 1)
        tau = sds[k] sqrt((df - 2) / chi2_df),   k ~ shares           (df = inf: tau = sds[k])

    Parameters
    ----------
    sds : tuple of float      >= 0, nats: standard deviation of delta_j given the level k
    shares : tuple of float   probabilities of the levels, total 1
    df : float                > 2; the marginal law at a level is Student t with df degrees of freedom, inf: Gaussian
    correlation : float       r in [0, 1], of two perturbations of one prefix

    Raises
    ------
    InputError   levels without shares, shares that are no law, a scale, df or correlation out of range

    Gives      correlation r exactly; P(delta_i delta_j > 0) = 1/2 + arcsin(r)/pi at every level (an elliptical law)

    Examples
    --------
    >>> law = ScaleMixture((0.1, 0.5), (0.75, 0.25))
    >>> round(law.sd, 6), law.mgf(1.0) == 0.75 * math.exp(0.005) + 0.25 * math.exp(0.125)
    (0.264575, True)
    """

    sds: tuple[float, ...]
    shares: tuple[float, ...]
    df: float = math.inf
    correlation: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sds) != len(self.shares) or not self.sds:
            raise InputError(
                "`sds` and `shares` must have one entry per level", found=(len(self.sds), len(self.shares))
            )
        if min(self.shares) < 0 or abs(math.fsum(self.shares) - 1) > MASS:
            raise InputError("`shares` must be >= 0 with total 1", found=f"total {math.fsum(self.shares):.12g}")
        for sd in self.sds:
            require_scale("sds", sd)
        if not self.df > 2:
            raise InputError("`df` must be > 2", found=self.df, hint="levels are given by their standard deviation")
        require_correlation(self.correlation)

    def levels(self, streams: NoiseStreams) -> Int64[Tensor, " N"]:
        """Level k of each prefix, by inverting the distribution function."""
        edges = torch.tensor(np.cumsum(self.shares)[:-1], dtype=torch.float64)
        return torch.searchsorted(edges, streams.child("level").uniform(1)[:, 0], right=True)

    def scales(self, streams: NoiseStreams) -> Float[Tensor, " N"]:
        """Scale tau of each prefix, nats."""
        tau = torch.tensor(self.sds, dtype=torch.float64)[self.levels(streams)]
        if math.isinf(self.df):
            return tau
        chi2 = 2 * gammaincinv(self.df / 2, streams.child("chi2").uniform(1)[:, 0].numpy())
        return tau * torch.from_numpy(np.sqrt((self.df - 2) / chi2))

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations; the normals are those of `Gaussian` with the same streams."""
        own = streams.normal(log_probs.shape[-1])
        common = streams.child("common").normal(1)
        r = self.correlation
        return self.scales(streams)[:, None] * (math.sqrt(r) * common + math.sqrt(1 - r) * own)

    def given(self, low: int, high: int) -> ScaleMixture:
        """Return the law of prefixes whose level is in low..high."""
        mass = math.fsum(self.shares[low : high + 1])
        if not mass > 0:
            raise InputError("some level must be in the range and have a share", found=f"levels {low}..{high}")
        shares = tuple(s / mass for s in self.shares[low : high + 1])
        return ScaleMixture(self.sds[low : high + 1], shares, self.df, self.correlation)

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        return math.sqrt(math.fsum(w * s * s for w, s in zip(self.shares, self.sds, strict=True)))

    def covariance(self, size: int) -> Float[Tensor, "V V"]:
        """Covariance matrix of the perturbations of `size` logits."""
        r = self.correlation
        return self.sd**2 * (r + (1 - r) * torch.eye(size, dtype=torch.float64))

    def mgf(self, t: float) -> float:
        """E exp(t delta_j)."""
        return self._exponential(t * t)

    def pair_moment(self) -> float:
        """E exp(delta_i - delta_j): given the scale, a normal of variance 2 tau^2 (1 - r)."""
        return self._exponential(2 * (1 - self.correlation))

    def _exponential(self, factor: float) -> float:
        """E exp(factor tau^2 / 2)."""
        if factor == 0 or self.sd == 0:
            return 1.0
        if not math.isinf(self.df) or factor * max(self.sds) ** 2 / 2 > 709:
            return math.inf
        return math.fsum(w * math.exp(factor * s * s / 2) for w, s in zip(self.shares, self.sds, strict=True))

    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""
        if x < 0:
            return 1.0
        sds = np.array(self.sds)
        z = np.where(sds > 0, x / np.where(sds > 0, sds, 1.0), np.inf)
        if math.isinf(self.df):
            return float((np.array(self.shares) * 2 * ndtr(-z)).sum())
        return float((np.array(self.shares) * 2 * stdtr(self.df, -z * math.sqrt(self.df / (self.df - 2)))).sum())

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        require_level(level)
        if self.tail(0.0) <= 1 - level:
            return 0.0
        high = max(self.sds)
        while self.tail(high) > 1 - level:
            high *= 2
        return float(brentq(lambda x: self.tail(x) - (1 - level), 0.0, high, rtol=1e-13))  # pyright: ignore[reportArgumentType]
