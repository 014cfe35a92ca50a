"""Student-t noise, independent from logit to logit: power-law tails, no exponential moment at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.special import stdtr, stdtrit
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import MarginalLaw, require_level, require_scale
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True, slots=True)
class StudentT(MarginalLaw):
    """Independent Student-t perturbations.

        delta_j = scale t_j,   t_j ~ Student(df),   M(t) = inf for every t != 0

    Parameters
    ----------
    scale : float   >= 0, nats; the standard deviation is scale * sqrt(df / (df - 2)) for df > 2, else inf
    df : float      > 0, degrees of freedom

    Raises
    ------
    InputError   unless scale is finite and >= 0, df finite and > 0

    Gives        the average second moment of the exact ratio is infinite, however small the scale (C5)

    Examples
    --------
    >>> law = StudentT(0.1, df=4.0)
    >>> law.mgf(0.01), round(law.sd, 6), round(law.quantile(0.95), 6)
    (inf, 0.141421, 0.277645)
    """

    scale: float
    df: float

    def __post_init__(self) -> None:
        require_scale("scale", self.scale)
        if not (math.isfinite(self.df) and self.df > 0):
            raise InputError("`df` must be finite and > 0", found=self.df, hint="use Gaussian for infinite df")

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, by inverting the distribution function."""
        u = streams.uniform(log_probs.shape[-1])
        lower = torch.from_numpy(stdtrit(self.df, torch.minimum(u, 1 - u).numpy()))
        return self.scale * torch.where(u < 0.5, lower, -lower)

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        if self.scale == 0:
            return 0.0
        return self.scale * math.sqrt(self.df / (self.df - 2)) if self.df > 2 else math.inf

    def mgf(self, t: float) -> float:
        """E exp(t delta_j): 1 at t = 0, infinite elsewhere."""
        return 1.0 if t * self.scale == 0 else math.inf

    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""
        if self.scale == 0:
            return float(x < 0)
        return 2 * float(stdtr(self.df, -max(x, 0.0) / self.scale))

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        require_level(level)
        return self.scale * float(-stdtrit(self.df, (1 - level) / 2))
