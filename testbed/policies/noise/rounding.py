"""The noise of a short number format: logits rounded to bfloat16 or float16. Nothing about it is random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.streams import NoiseStreams

FORMATS = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Rounding(NoiseLaw):
    """Perturbations that round the logits to the nearest number of a short format (ties to even).

        delta_j = round(log p_j + offset) - (log p_j + offset)

    Parameters
    ----------
    format : "bfloat16" or "float16"   8 and 11 significant bits
    offset : float                     finite, nats: where the logits lie. A law fixes its logits up to a constant, but
                                       their rounding depends on it: bfloat16's steps are 1/8 at 16..32, 1/128 at 1..2

    Raises
    ------
    InputError   an unknown format; a logit that leaves float16's range

    Assumes    the logits in question are log p + offset
    Gives      rounding twice is rounding once; a token of probability 0 keeps it

    Examples
    --------
    >>> law = Rounding("bfloat16", offset=24.0)
    >>> law.perturbation(torch.tensor([[-0.02, -4.3]], dtype=torch.float64))  # to 24 and 19.75
    tensor([[0.0200, 0.0500]], dtype=torch.float64)
    """

    format: str = "bfloat16"
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"`format` must be one of {', '.join(FORMATS)}", found=repr(self.format))
        if not math.isfinite(self.offset):
            raise InputError("`offset` must be finite", found=self.offset)

    def perturbation(self, log_probs: Float[Tensor, "*N V"]) -> Float[Tensor, "*N V"]:
        """What rounding adds to each logit; 0 where the probability is 0."""
        logits = log_probs.double() + self.offset
        possible = torch.isfinite(logits)
        logits = torch.where(possible, logits, 0.0)
        rounded = logits.to(getattr(torch, self.format)).double()
        if not bool(torch.isfinite(rounded).all()):
            raise InputError(f"logits must lie in the range of {self.format}", found=f"{float(logits.abs().max()):.6g}")
        return rounded - logits

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations; the streams are not used."""
        return self.perturbation(log_probs).cpu()
