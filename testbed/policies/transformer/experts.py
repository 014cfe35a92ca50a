"""Feed-forward layers: one gated unit, or several experts of which a router picks a few for every token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.seeds import SeedTree
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import linear, product, silu, softmax


def gated_unit(
    x: Float[Tensor, "*B d"], weights: Mapping[str, Tensor], at: str, numerics: Numerics
) -> Float[Tensor, "*B d"]:
    """W_down (silu(W_gate x) * W_up x)."""
    inner = silu(linear(x, weights[at + "gate"], numerics), numerics) * linear(x, weights[at + "up"], numerics)
    return linear(inner, weights[at + "down"], numerics)


def router_logits(
    x: Float[Tensor, "B c d"],
    weight: Float[Tensor, "E d"],
    layer: int,
    positions: Int64[Tensor, "B c"],
    config: TransformerConfig,
    numerics: Numerics,
) -> Float[Tensor, "B c E"]:
    """Affinity of each token to each expert, under the arithmetic of this engine's router."""
    if numerics.router == "low_precision":
        low = numerics.but(dtype="bfloat16")
        return linear(x.to(low.format), weight.to(low.format), low).to(numerics.wide)
    logits = linear(x, weight, numerics).to(numerics.wide)
    if numerics.router == "noisy":
        noise = _router_noise(numerics.router_seed, layer, config.context, config.experts).to(logits.device)
        logits = logits + (numerics.router_noise * noise[positions]).to(logits.dtype)
    return logits


def chosen_experts(logits: Float[Tensor, "*B E"], count: int) -> Int64[Tensor, "*B k"]:
    """Return the experts of largest affinity in ascending order; the lower number wins a tie.

    Examples
    --------
    >>> chosen_experts(torch.tensor([[0.1, 0.7, 0.0, 0.7], [3.0, 1.0, 1.0, 1.0]]), 2)
    tensor([[1, 3],
            [0, 1]])
    """
    order = torch.sort(logits.detach(), dim=-1, descending=True, stable=True).indices
    return torch.sort(order[..., :count], dim=-1).values


def expert_shares(
    logits: Float[Tensor, "*B E"], chosen: Int64[Tensor, "*B k"], numerics: Numerics
) -> Float[Tensor, "*B E"]:
    """Share of each expert in the output: softmax of the chosen ones' affinities, 0 for the others; sums to 1."""
    number = torch.arange(logits.shape[-1], device=logits.device)
    keep = (chosen[..., None] == number).any(-2)
    return softmax(logits, keep, numerics)


def mixture_of_experts(
    x: Float[Tensor, "B c d"],
    share: Float[Tensor, "B c E"],
    weights: Mapping[str, Tensor],
    at: str,
    config: TransformerConfig,
    numerics: Numerics,
) -> Float[Tensor, "B c d"]:
    """Sum of the chosen experts' outputs, each times its share.

    Every expert sees every token and unchosen ones get share 0; without a graph and in the fixed order, where it changes no
    bit, an expert is given its own tokens only.
    """
    rows, shares = x.reshape(-1, x.shape[-1]), share.reshape(-1, config.experts).to(x.dtype)
    sparse = numerics.reduction == "fixed" and not torch.is_grad_enabled()
    outputs = []
    for e in range(config.experts):
        mine = {name: weights[at + name][e] for name in ("gate", "up", "down")}
        if sparse:
            here = torch.nonzero(shares[:, e])[:, 0]
            outputs.append(torch.zeros_like(rows).index_copy(0, here, gated_unit(rows[here], mine, "", numerics)))
        else:
            outputs.append(gated_unit(rows, mine, "", numerics))
    stacked = torch.stack(outputs, -2)  # [rows, E, d]
    return product(shares[:, None], stacked, numerics)[:, 0].reshape(x.shape)


@lru_cache(maxsize=64)
def _router_noise(seed: int, layer: int, context: int, experts: int) -> Tensor:
    generator = SeedTree(seed)["router_noise"][layer].torch_generator()
    return torch.randn(context, experts, generator=generator, dtype=torch.float64)
