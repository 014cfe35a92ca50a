"""Causal self-attention with rotary positions, over the tokens at hand or over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import attended, linear


@lru_cache(maxsize=32)
def rotary_table(
    context: int, head_width: int, base: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "C half"], Float[Tensor, "C half"]]:
    """Cosine and sine of every angle position * base^(-2 i / head_width); one table, so that all batches read the same bits.

    Examples
    --------
    >>> cosine, sine = rotary_table(4, 2, 1e4, torch.float64)
    >>> cosine.shape, sine[1].item() == torch.tensor(1.0, dtype=torch.float64).sin().item()
    (torch.Size([4, 1]), True)
    """
    frequency = base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotations(
    positions: Int64[Tensor, "B c"], config: TransformerConfig, numerics: Numerics
) -> tuple[Float[Tensor, "B c 1 D"], Float[Tensor, "B c 1 D"]]:
    """Cosines and signed sines that turn a head at these positions; the same for every layer of a pass."""
    tables = rotary_table(config.context, config.head_width, config.rope_base, numerics.wide)
    cosine, sine = (table.to(positions.device)[positions][:, :, None] for table in tables)
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def rotated(
    x: Float[Tensor, "B c H D"], turn: tuple[Float[Tensor, "B c 1 D"], Float[Tensor, "B c 1 D"]], numerics: Numerics
) -> Float[Tensor, "B c H D"]:
    """Turn the pairs (i, i + D/2) of every head by the angle of the token's position.

    Gives      <rotated(q, m), rotated(k, n)> depends on m and n through m - n only
    """
    cosine, sine = turn
    wide = x.to(numerics.wide)
    return (wide * cosine + wide.roll(x.shape[-1] // 2, -1) * sine).to(x.dtype)


def keys_and_values(
    x: Float[Tensor, "B c d"],
    weights: Mapping[str, Tensor],
    at: str,
    turn: tuple[Float[Tensor, "B c 1 D"], Float[Tensor, "B c 1 D"]],
    config: TransformerConfig,
    numerics: Numerics,
) -> tuple[Float[Tensor, "B c H D"], Float[Tensor, "B c H D"]]:
    """Return what a cache keeps of these tokens: their rotated keys and their values."""
    shape = (*x.shape[:-1], config.kept_heads, config.head_width)
    key = linear(x, weights[at + "key"], numerics).reshape(shape)
    value = linear(x, weights[at + "value"], numerics).reshape(shape)
    return rotated(key, turn, numerics), value


def attend(
    x: Float[Tensor, "B c d"],
    key: Float[Tensor, "B S H D"],
    value: Float[Tensor, "B S H D"],
    keep: Bool[Tensor, "#B 1 Q S"],
    weights: Mapping[str, Tensor],
    at: str,
    turn: tuple[Float[Tensor, "B c 1 D"], Float[Tensor, "B c 1 D"]],
    config: TransformerConfig,
    numerics: Numerics,
) -> Float[Tensor, "B c d"]:
    """Attention of each token to the slots it sees, through the output projection.

    out = W_o concat_h sum_s softmax_s(q_h . k_gs / sqrt(D)) v_gs,  g the head of keys that h reads

    Queries that read one head of keys are rows of one product: Q = c * heads / key heads, as `shared_rows` arranges them.
    """
    batch, count = x.shape[:2]
    query = linear(x, weights[at + "query"], numerics).reshape(batch, count, config.heads, config.head_width)
    query = rotated(query, turn, numerics).transpose(1, 2)  # [B, H, c, D]
    query = query.reshape(batch, config.kept_heads, -1, config.head_width)
    mixed = attended(query, key, value, keep, numerics).reshape(batch, config.heads, count, config.head_width)
    return linear(mixed.transpose(1, 2).reshape(x.shape), weights[at + "output"], numerics)


def shared_rows(visible: Bool[Tensor, "B c S"], config: TransformerConfig) -> Bool[Tensor, "B 1 Q S"]:
    """What the rows of one head of keys see: every token once for each query head that shares it."""
    return visible.repeat(1, config.heads // config.kept_heads, 1)[:, None]
