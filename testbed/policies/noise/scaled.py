"""A noise law made larger or smaller: the same draws, times a factor."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True)
class Scaled(NoiseLaw):
    """Perturbations of another law, multiplied.

        delta = factor * delta_0,    delta_0 ~ noise

    Parameters
    ----------
    noise : NoiseLaw
    factor : float     >= 0; 0 is no noise

    Raises
    ------
    InputError   a negative factor, or one that is not finite

    Examples
    --------
    >>> import torch
    >>> from testbed.policies.noise.gaussian import Gaussian
    >>> streams, law = NoiseStreams([]), torch.zeros(0, 3)
    >>> Scaled(Gaussian(1.0), 2.0).draw(streams, law).shape
    torch.Size([0, 3])
    """

    noise: NoiseLaw
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.factor < float("inf"):
            raise InputError("`factor` of a noise must be finite and >= 0", found=self.factor)

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, one row per stream."""
        return self.factor * self.noise.draw(streams, log_probs)
