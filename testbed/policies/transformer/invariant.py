"""Arithmetic whose result does not depend on the shape of the batch: sums, exponentials and softmax in one fixed order.

A library's matrix product picks its kernel, and with it the order of summation, by the shape of its operands; a library's
elementwise function may treat the last few entries of an array by another routine than the rest. Here everything is made
of elementwise additions, multiplications, divisions and square roots, which IEEE 754 rounds in one way only:

* a sum adds neighbors in pairs, then neighboring pairs, ...; a missing partner is left out, which equals adding zero, so
  that zeros appended to the summands (later positions, not attended to) leave every bit as it was;
* exp and log are polynomials, evaluated by Horner's rule without fused operations.

The price is a factor of 5 to 20 in time (models of 0.1 to 11 million weights on one CPU core).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 2**17  # products held at once, so that they stay in the processor's cache
LOWEST, HIGHEST = -708.0, 709.0  # exp stays a normal float64 in between
LN2_HIGH = 0.6931471803691238  # its last 21 bits are zero: k * LN2_HIGH is exact for |k| < 2^11
LN2_LOW = 1.9082149292705877e-10
EXP_TERMS = [1 / math.factorial(j) for j in range(13, -1, -1)]
LOG_TERMS = [1 / (2 * j + 1) for j in range(11, -1, -1)]


def pairwise_sum(x: Float[Tensor, "n ..."]) -> Float[Tensor, "..."]:
    """Sum over the first axis, adding neighbors in pairs until one is left.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> pairwise_sum(x), torch.equal(pairwise_sum(x), pairwise_sum(torch.cat([x, torch.zeros(6)])))
    (tensor(15.), True)
    """
    if x.shape[0] == 0:
        return x.sum(0)
    while x.shape[0] > 1:
        even = x.shape[0] // 2 * 2
        pairs = x[0:even:2] + x[1:even:2]
        x = pairs if even == x.shape[0] else torch.cat([pairs, x[even:]])
    return x[0]


def fixed_linear(x: Float[Tensor, "*B K"], weight: Float[Tensor, "N K"]) -> Float[Tensor, "*B N"]:
    """Matrix product x weight^T, every entry summed over K in the fixed order."""
    rows = x.reshape(-1, x.shape[-1])
    count = max(1, BLOCK // weight.numel())
    left = rows.T.contiguous()[:, :, None]  # [K, rows, 1]
    right = weight.T.contiguous()[:, None]  # [K, 1, N]
    parts = [pairwise_sum(left[:, i : i + count] * right) for i in range(0, rows.shape[0], count)]
    out = torch.cat(parts) if parts else rows.new_zeros(0, weight.shape[0])
    return out.reshape(*x.shape[:-1], weight.shape[0])


def fixed_product(a: Float[Tensor, "*B Q K"], b: Float[Tensor, "*B K S"]) -> Float[Tensor, "*B Q S"]:
    """Batched matrix product, every entry summed over K in the fixed order."""
    (q, k), s = a.shape[-2:], b.shape[-1]
    left = a.reshape(-1, q, k).movedim(-1, 0).contiguous()[..., None]  # [K, batch, Q, 1]
    right = b.reshape(-1, k, s).movedim(-2, 0).contiguous()[..., None, :]  # [K, batch, 1, S]
    count = max(1, BLOCK // max(1, q * k * s))
    parts = [pairwise_sum(left[:, i : i + count] * right[:, i : i + count]) for i in range(0, left.shape[1], count)]
    out = torch.cat(parts) if parts else a.new_zeros(0, q, s)
    return out.reshape(*a.shape[:-1], s)


def fixed_total(x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
    """Sum over the last axis in the fixed order."""
    return pairwise_sum(x.movedim(-1, 0).contiguous())


def fixed_exp(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Exponential by basic operations only: e^x = 2^k e^r with |r| <= ln(2) / 2 and a Taylor polynomial of degree 13.

    Computed in float64 and rounded to the dtype of x; arguments are limited to [-708, 709].

    Examples
    --------
    >>> fixed_exp(torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)).tolist()
    [1.0, 2.7182818284590455, 0.1353352832366127]
    """
    wide = x.double().clamp(LOWEST, HIGHEST)
    k = (wide.detach() * (1 / math.log(2))).round()
    r = (wide - k * LN2_HIGH) - k * LN2_LOW
    value = _horner(EXP_TERMS, r)
    return (value * _powers_of_two(x.device)[k.long() + 1024]).to(x.dtype)


def fixed_log(x: Float[Tensor, "*B"], most: int) -> Float[Tensor, "*B"]:
    """Logarithm of numbers in [1, most] by basic operations only.

    log x = k ln 2 + 2 artanh((m - 1) / (m + 1)) with x = 2^k m and m in [1/sqrt(2), sqrt(2)).

    Examples
    --------
    >>> fixed_log(torch.tensor([1.0, 8.0], dtype=torch.float64), most=8).tolist() == [0.0, math.log(8)]
    True
    """
    wide = x.double()
    k = torch.zeros_like(wide)
    for power in range(most.bit_length()):
        k = k + (wide.detach() >= math.sqrt(2) * 2.0**power)
    m = wide * _powers_of_two(x.device)[1024 - k.long()]
    f = (m - 1) / (m + 1)
    return (k * LN2_HIGH + (k * LN2_LOW + 2 * f * _horner(LOG_TERMS, f * f))).to(x.dtype)


def fixed_softmax(x: Float[Tensor, "*B K"], keep: Bool[Tensor, "#*B K"]) -> Float[Tensor, "*B K"]:
    """Softmax over the kept entries of the last axis; exactly 0 on the others, which change no bit of the rest."""
    top = torch.where(keep, x, torch.full_like(x, -math.inf)).amax(-1, keepdim=True).detach()
    weight = torch.where(keep, fixed_exp(torch.where(keep, x - top, torch.zeros_like(x))), torch.zeros_like(x))
    return weight / fixed_total(weight)[..., None]


def fixed_log_softmax(x: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Log-softmax over the last axis in the fixed order."""
    shifted = x - x.amax(-1, keepdim=True).detach()
    return shifted - fixed_log(fixed_total(fixed_exp(shifted)), x.shape[-1])[..., None]


def fixed_silu(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return x / (1 + exp(-x)) by basic operations only."""
    return x / (1 + fixed_exp(-x.clamp(min=-80)))


def _horner(terms: list[float], x: Tensor) -> Tensor:
    value = torch.full_like(x, terms[0])
    for term in terms[1:]:
        value = value * x + term
    return value


@lru_cache(maxsize=4)
def _powers_of_two(device: torch.device) -> Tensor:
    """2^k for k = -1024 .. 1023, exactly."""
    return torch.tensor([2.0**k for k in range(-1024, 1024)], dtype=torch.float64, device=device)
