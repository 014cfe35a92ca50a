"""Noise that is rougher or calmer where the model is sure: a scale that depends on the prefix's own law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import NoiseLaw, require_scale
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True, slots=True)
class ConfidenceScaled(NoiseLaw):
    """A noise law stretched by a power of the uncertainty of the prefix.

        delta_j = factor max(1 - p_max, floor)^(-exponent) delta'_j,   delta' from `law`,   p_max = largest probability

    Parameters
    ----------
    law : NoiseLaw     what is stretched
    exponent : float   finite; > 0 makes confident prefixes rougher, 0 leaves all alike
    floor : float      in (0, 1], least uncertainty told apart
    factor : float     >= 0, e.g. what keeps the average variance over a population of prefixes

    Raises
    ------
    InputError   a parameter out of range

    Gives      all logits of a prefix are stretched alike, so a common part still moves no law

    Examples
    --------
    >>> from testbed.policies.noise.gaussian import Gaussian
    >>> law = ConfidenceScaled(Gaussian(0.3), exponent=0.5, floor=1e-4)
    >>> law.scale(torch.tensor([[0.99, 0.01], [0.5, 0.5]], dtype=torch.float64).log())
    tensor([10.0000,  1.4142], dtype=torch.float64)
    """

    law: NoiseLaw
    exponent: float
    floor: float = 1e-6
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent):
            raise InputError("`exponent` must be finite", found=self.exponent)
        if not 0 < self.floor <= 1:
            raise InputError("`floor` must lie in (0, 1]", found=self.floor)
        require_scale("factor", self.factor)

    def scale(self, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
        """Factor by which each prefix's noise is stretched."""
        uncertainty = -torch.expm1(log_probs.double().amax(-1).clamp(max=0.0))
        return self.factor * uncertainty.clamp(min=self.floor) ** -self.exponent

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, one row per stream."""
        return self.scale(log_probs).cpu()[:, None] * self.law.draw(streams, log_probs)
