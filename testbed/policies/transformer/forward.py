"""The forward pass: token ids to the residual stream to logits, for a whole context or for the newest tokens of a cache."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.transformer.block import Place, block
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import linear, log_softmax, rms_norm


def full_place(batch: int, length: int, device: torch.device) -> Place:
    """Positions 0 .. length - 1 in every row, each seeing itself and what came before."""
    positions = torch.arange(length, device=device)
    return Place(positions=positions.expand(batch, length), visible=(positions[:, None] >= positions)[None])


def residual_stream(
    context: Int64[Tensor, "B c"],
    weights: Mapping[str, Tensor],
    place: Place,
    config: TransformerConfig,
    numerics: Numerics,
    replayed: Int64[Tensor, "B c L k"] | None = None,
) -> tuple[Float[Tensor, "B c d"], Int64[Tensor, "B c L k"] | None]:
    """Residual stream after the last layer, and the experts that acted in each layer (None when dense)."""
    x, place = weights["embedding"][context], place.ready(config, numerics)
    chosen = []
    for layer in range(config.layers):
        forced = None if replayed is None else replayed[:, :, layer]
        x, experts = block(x, weights, layer, place, config, numerics, forced)
        chosen.append(experts)
    return x, torch.stack(chosen, 2) if config.experts else None


def next_token_laws(
    x: Float[Tensor, "*B d"], weights: Mapping[str, Tensor], config: TransformerConfig, numerics: Numerics
) -> Float[Tensor, "*B V"]:
    """Float64 log-probabilities of the next token.

    The logits have the engine's format; their log-softmax is taken in float64, so that every law sums to 1 to rounding.
    """
    normed = rms_norm(x, weights["final_norm"], config.epsilon, numerics)
    return log_softmax(linear(normed, weights["head"], numerics).double(), numerics)
