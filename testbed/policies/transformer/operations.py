"""The operations a forward pass is made of, each in the order of summation that an engine's `Numerics` names.

Products of low-precision numbers are summed in float32 and rounded once, as matrix units do.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.policies.transformer.held_weights import packed_product
from testbed.policies.transformer.invariant import (
    fixed_linear,
    fixed_log_softmax,
    fixed_product,
    fixed_silu,
    fixed_softmax,
    fixed_total,
)
from testbed.policies.transformer.numerics import Numerics

SPLITS = 4


def linear(x: Float[Tensor, "*B K"], weight: Float[Tensor, "N K"], numerics: Numerics) -> Float[Tensor, "*B N"]:
    """Matrix product x weight^T."""
    if numerics.reduction == "fixed":
        return fixed_linear(x.to(numerics.wide), weight.to(numerics.wide)).to(x.dtype)
    if weight.is_mkldnn:
        return packed_product(x, weight)
    if numerics.reduction == "library":
        return torch.nn.functional.linear(x, weight)
    return product(x, weight.T, numerics)


def product(a: Float[Tensor, "*B Q K"], b: Float[Tensor, "*C K S"], numerics: Numerics) -> Float[Tensor, "*D Q S"]:
    """Batched matrix product a b."""
    if numerics.reduction == "fixed":
        return fixed_product(a.to(numerics.wide), b.to(numerics.wide)).to(a.dtype)
    if numerics.reduction == "reversed":
        return a.flip(-1) @ b.flip(-2)
    if numerics.reduction == "split":
        parts = zip(a.tensor_split(SPLITS, -1), b.tensor_split(SPLITS, -2), strict=True)
        return sum((x @ y).to(numerics.wide) for x, y in parts).to(a.dtype)  # pyright: ignore
    return a @ b


def attended(
    query: Float[Tensor, "B G Q D"],
    key: Float[Tensor, "B S G D"],
    value: Float[Tensor, "B S G D"],
    keep: Bool[Tensor, "#B 1 Q S"],
    numerics: Numerics,
) -> Float[Tensor, "B G Q D"]:
    """Mean of the kept values, weighted by the softmax of q . k / sqrt(D).

    Without a graph the library's fused kernel does it, which reads a cache where it lies.
    """
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if numerics.reduction == "library" and query.dtype == numerics.wide and not torch.is_grad_enabled():
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    scores = product(query, key.transpose(2, 3), numerics).to(numerics.wide) * query.shape[-1] ** -0.5
    return product(softmax(scores, keep, numerics).to(value.dtype), value, numerics)


def total(x: Float[Tensor, "*B K"], numerics: Numerics) -> Float[Tensor, "*B"]:
    """Sum over the last axis."""
    if numerics.reduction == "fixed":
        return fixed_total(x)
    if numerics.reduction == "reversed":
        return x.flip(-1).sum(-1)
    if numerics.reduction == "split":
        return torch.stack([part.sum(-1) for part in x.tensor_split(SPLITS, -1)]).sum(0)
    return x.sum(-1)


def softmax(x: Float[Tensor, "*B K"], keep: Bool[Tensor, "*C K"], numerics: Numerics) -> Float[Tensor, "*B K"]:
    """Softmax over the kept entries of the last axis; 0 on the others."""
    if numerics.reduction == "fixed":
        return fixed_softmax(x, keep)
    return torch.softmax(x.masked_fill(~keep, float("-inf")), -1)


def log_softmax(x: Float[Tensor, "*B V"], numerics: Numerics) -> Float[Tensor, "*B V"]:
    """Log-softmax over the last axis."""
    return fixed_log_softmax(x) if numerics.reduction == "fixed" else torch.log_softmax(x, -1)


def silu(x: Float[Tensor, "*B"], numerics: Numerics) -> Float[Tensor, "*B"]:
    """Return x sigmoid(x)."""
    return fixed_silu(x) if numerics.reduction == "fixed" else torch.nn.functional.silu(x)


def rms_norm(
    x: Float[Tensor, "*B D"], scale: Float[Tensor, " D"], epsilon: float, numerics: Numerics
) -> Float[Tensor, "*B D"]:
    """Divide by the root of the mean square and multiply by a learned scale.

    y = scale * x / sqrt(mean(x^2) + epsilon), in float32 at least
    """
    wide = x.to(numerics.wide)
    if numerics.reduction == "library":
        return torch.nn.functional.rms_norm(wide, scale.shape, scale.to(wide.dtype), epsilon).to(x.dtype)
    mean = total(wide * wide, numerics) / x.shape[-1]
    return (wide / torch.sqrt(mean + epsilon)[..., None] * scale.to(numerics.wide)).to(x.dtype)
