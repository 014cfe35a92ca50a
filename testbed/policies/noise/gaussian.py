"""Gaussian noise, independent from logit to logit: the law with every exponential moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

from testbed.policies.noise.law import MarginalLaw, require_level, require_scale
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True, slots=True)
class Gaussian(MarginalLaw):
    """Independent normal perturbations.

        delta_j = sigma z_j,   z_j ~ N(0, 1),   M(t) = exp(sigma^2 t^2 / 2)

    Parameters
    ----------
    sigma : float   >= 0, nats

    Raises
    ------
    InputError   unless sigma is finite and >= 0

    Examples
    --------
    >>> law = Gaussian(0.5)
    >>> round(law.mgf(1.0), 6), round(law.quantile(0.99), 4)
    (1.133148, 1.2879)
    """

    sigma: float

    def __post_init__(self) -> None:
        require_scale("sigma", self.sigma)

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations; with the same streams, sigma scales one fixed direction."""
        return self.sigma * streams.normal(log_probs.shape[-1])

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        return self.sigma

    def mgf(self, t: float) -> float:
        """E exp(t delta_j)."""
        exponent = (self.sigma * t) ** 2 / 2
        return math.exp(exponent) if exponent < 709 else math.inf

    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""
        if self.sigma == 0:
            return float(x < 0)
        return math.erfc(max(x, 0.0) / (self.sigma * math.sqrt(2)))

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        require_level(level)
        return self.sigma * float(-ndtri((1 - level) / 2))
