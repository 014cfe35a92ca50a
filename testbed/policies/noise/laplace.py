"""Laplace noise, independent from logit to logit: exponential moments up to an order of 1/scale, then none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.policies.noise.law import MarginalLaw, require_level, require_scale
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True, slots=True)
class Laplace(MarginalLaw):
    """Independent two-sided exponential perturbations.

        P(|delta_j| > x) = exp(-x / scale),   M(t) = 1 / (1 - scale^2 t^2) for |t| scale < 1, inf beyond

    Parameters
    ----------
    scale : float   >= 0, nats; the standard deviation is scale * sqrt(2)

    Raises
    ------
    InputError   unless scale is finite and >= 0

    Examples
    --------
    >>> Laplace(0.5).mgf(1.0), Laplace(1.0).mgf(1.0)
    (1.3333333333333333, inf)
    """

    scale: float

    def __post_init__(self) -> None:
        require_scale("scale", self.scale)

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, by inverting the distribution function; scale stretches one fixed draw."""
        u = streams.uniform(log_probs.shape[-1])
        return self.scale * torch.where(u < 0.5, torch.log(2 * u), -torch.log(2 * (1 - u)))

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        return self.scale * math.sqrt(2)

    def mgf(self, t: float) -> float:
        """E exp(t delta_j)."""
        square = (self.scale * t) ** 2
        return 1 / (1 - square) if square < 1 else math.inf

    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""
        if self.scale == 0:
            return float(x < 0)
        return math.exp(-max(x, 0.0) / self.scale)

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        require_level(level)
        return -self.scale * math.log1p(-level)
