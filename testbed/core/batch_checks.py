"""The checks a log-probability passes before it enters a batch, each with the message a user can act on."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import upcast

SAMPLE, HEAD = 4096, 65536  # tokens looked at to recognize a 16-bit grid; tokens searched for them
POSITIVE_TOLERANCE = 1e-6  # un-fused logit - logsumexp overshoots 0 by a few ulp; more than this is another quantity


def first_index(bad: Bool[Tensor, "..."]) -> tuple[int, ...]:
    """Return the first True position, in row-major order."""
    return tuple(int(i) for i in torch.nonzero(bad)[0])


def clean_log_prob(
    name: str, value: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], int]:
    """Return (value with 0 on padding and tiny positives clipped to 0, how many were clipped), at least float32.

    Raises
    ------
    InputError   NaN on a real token; above 1e-6; -inf in a behavior's log-prob
    """
    if not value.is_floating_point():
        raise InputError(f"`{name}` must be floating point", found=value.dtype)
    value = torch.where(mask, upcast(value), torch.zeros((), dtype=upcast(value).dtype, device=value.device))
    plain = value.detach()
    if plain.numel() == 0:
        return value, 0
    low, high = (float(x) for x in torch.aminmax(plain))  # one pass; NaN propagates, so good input is settled here
    if math.isnan(high):
        bad = plain.isnan()
        raise InputError(
            f"`{name}` must not be NaN on a real token",
            found=f"{int(bad.sum())} NaN, first at {first_index(bad)}",
            hint="drop the response or mask the token; a missing log-prob is not 0",
        )
    if high > POSITIVE_TOLERANCE:
        above = plain > POSITIVE_TOLERANCE
        where = first_index(above)
        raise InputError(
            f"`{name}` must be log-probabilities <= 0",
            hint="did you pass a probability or a logit?",
            found=f"{int(above.sum())} above 1e-6, first {float(plain[where]):.6g} at {where}",
        )
    if name == "logp_behavior" and low == -math.inf:
        impossible = torch.isneginf(plain)
        raise InputError(
            "`logp_behavior` must be finite on drawn tokens: the sampler cannot have drawn a token of probability 0",
            found=f"{int(impossible.sum())} of -inf, first at {first_index(impossible)}",
        )
    if high <= 0:
        return value, 0
    return value.clamp(max=0.0), int((plain > 0).sum())


def low_precision_grid(value: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float | None:
    """Rounding grid in nats of log-probs that are, or have passed through, a 16-bit format; None if they have not.

    A widened bfloat16 value keeps its rounding, so float32 and float64 values are also tested: if at least 16 distinct
    real tokens *all* lie on the bfloat16 (float16) grid, they came from there (by chance: below 2^-256).

    Examples
    --------
    >>> low_precision_grid(torch.tensor([[-5.4321]], dtype=torch.bfloat16), torch.tensor([[True]]))
    0.03125
    """
    flat, real_token = value.detach().reshape(-1), mask.reshape(-1)
    head = flat[:HEAD][real_token[:HEAD]]  # enough to tell, unless the batch begins with padding
    real = head if head.numel() >= SAMPLE else flat[real_token]
    real = real[torch.isfinite(real) & (real < 0)]
    if value.dtype in (torch.bfloat16, torch.float16):
        if real.numel() == 0:
            return None
        return _spacing(float(real.double().abs().median()), value.dtype)
    sample = real[:SAMPLE].unique()
    if sample.numel() < 16:
        return None
    for narrow in (torch.bfloat16, torch.float16):
        if bool((sample.to(narrow).to(sample.dtype) == sample).all()):
            return _spacing(float(sample.double().abs().median()), narrow)
    return None


def _spacing(magnitude: float, dtype: torch.dtype) -> float:
    """Distance between neighboring values of this 16-bit format at this magnitude."""
    exponent = torch.frexp(torch.tensor(magnitude, dtype=torch.float64)).exponent.item() - 1
    bits = 7 if dtype == torch.bfloat16 else 10
    return float(2.0 ** (exponent - bits))
