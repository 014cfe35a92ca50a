"""Weight-only int8: each output channel on a symmetric grid of 255 levels."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int8
from torch import Tensor

LEVELS = 127  # -127..127; -128 is left out so that the grid is symmetric


def int8_codes(weight: Float[Tensor, "*N K"]) -> tuple[Int8[Tensor, "*N K"], Float[Tensor, "*N 1"]]:
    """Nearest int8 code of each weight, and the step of each output channel (the last axis is summed over).

    step_n = max_k |w_nk| / 127,     code_nk = round(w_nk / step_n)

    Examples
    --------
    >>> codes, step = int8_codes(torch.tensor([[0.0, -2.54, 1.0]]))
    >>> codes.tolist(), round(step.item(), 6)
    ([[0, -127, 50]], 0.02)
    """
    step = weight.abs().amax(-1, keepdim=True) / LEVELS
    safe = torch.where(step > 0, step, torch.ones_like(step))
    return (weight / safe).round().clamp(-LEVELS, LEVELS).to(torch.int8), step


def rounded_to_int8(weight: Float[Tensor, "*N K"]) -> Float[Tensor, "*N K"]:
    """Return the weights that an engine with int8 weights computes with: code times step.

    Gives      |w - rounded| <= step / 2 = max_k |w_nk| / 254 in every channel
    """
    codes, step = int8_codes(weight)
    return codes.to(weight.dtype) * step
