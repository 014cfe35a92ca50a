"""Weights as an engine holds them between two changes: copies in its format, large matrices packed for the processor.

A step of a decoder is little but products of a few rows with large matrices. oneDNN, which PyTorch brings for most
processors, has the faster kernels for them, provided that a matrix lies in blocks of its own choosing; it is put there once
for many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.policies.transformer.numerics import QUANTIZED, Numerics, prepared

LEAST = (
    2**17
)  # entries; the packed product's overhead of some 8 microseconds costs more than it saves on a smaller matrix


class HeldWeights:
    """One set of weights, made anew when the model's change; copies of a policy share it.

    Examples
    --------
    >>> weights, held = {"head": torch.zeros(2, 2)}, HeldWeights()
    >>> first = held.of(weights, Numerics())
    >>> weights["head"] += 1
    >>> first["head"].sum().item(), held.of(weights, Numerics())["head"].sum().item()
    (0.0, 4.0)
    """

    def __init__(self) -> None:
        self._made_from: list[tuple[int, int]] = []
        self._weights: dict[str, Tensor] = {}

    def of(self, weights: Mapping[str, Tensor], numerics: Numerics) -> dict[str, Tensor]:
        """Weights under these numerics, without a graph; what an optimizer does to the model's is not seen by them."""
        now = [(id(weight), weight._version) for weight in weights.values()]
        if self._made_from != now:
            plain = {name: weight.detach() for name, weight in weights.items()}
            self._weights = {
                name: packed(held) if packable(name, held, numerics) else held.clone() if held is plain[name] else held
                for name, held in prepared(plain, numerics).items()
            }
            self._made_from = now
        return self._weights

    def __reduce__(self) -> tuple[type[HeldWeights], tuple[()]]:
        return HeldWeights, ()  # made anew where it is needed: a packed matrix cannot be written down


def packable(name: str, weight: Tensor, numerics: Numerics) -> bool:
    """Whether a weight is a matrix that gains by being packed: large, float32, and summed in the library's order."""
    return (
        numerics.reduction == "library"
        and weight.dim() == 2
        and (name == "head" or name.endswith(QUANTIZED))
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.numel() >= LEAST
        and _onednn()
    )


def packed(weight: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Return the matrix in oneDNN's blocks; only `packed_product` and `to_dense` can read it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def packed_product(x: Float[Tensor, "*B K"], weight: Float[Tensor, "N K"]) -> Float[Tensor, "*B N"]:
    """Matrix product x weight^T with a packed matrix; two to three times as fast as the plain one for 3 to 128 rows.

    Differentiable in x, not in the weight.

    Examples
    --------
    >>> x, weight = torch.ones(2, 3), torch.arange(6.0).reshape(2, 3)
    >>> packed_product(x, packed(weight)) if _onednn() else x @ weight.T
    tensor([[ 3., 12.],
            [ 3., 12.]])
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _Differentiable.apply(x, weight)
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")


class _Differentiable(torch.autograd.Function):
    """The packed product with its derivative, for which the matrix is unpacked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return packed_product(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.weight.to_dense(), None


@cache
def _onednn() -> bool:
    """Whether this build of PyTorch has both operations."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)
