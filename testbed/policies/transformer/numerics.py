"""What an engine's arithmetic is: number format, weight format, order of summation, cache, and who picks the experts.

Trainer and sampler run the same weights. Whatever differs between their `Numerics` is a source of mismatch between the
log-probabilities that they give the same token; `attribution` measures each source alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.int8 import rounded_to_int8

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CHOICES = {
    "dtype": tuple(DTYPES),
    "weights": ("full", "int8"),
    "reduction": ("library", "fixed", "split", "reversed"),
    "router": ("own", "low_precision", "noisy", "replayed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The arithmetic of one engine.

    Parameters
    ----------
    dtype : "float64" | "float32" | "bfloat16" | "float16"
        format of weights and activations; norms, softmax and sums run in float32 at least, the last softmax in float64
    weights : "full" | "int8"
        int8: the matrices of attention and feed-forward layers rounded to 255 levels per output channel
    reduction : "library" | "fixed" | "split" | "reversed"
        library: PyTorch's kernels, whose order of summation depends on the batch's shape; fixed: one order whatever the
        shape, so that cached steps and full forward agree bitwise; split: four partial sums; reversed: back to front
    cached : bool
        whether a decoder keeps keys and values (True), or computes every step's whole context anew
    router : "own" | "low_precision" | "noisy" | "replayed"
        own: router logits in this engine's dtype; low_precision: in bfloat16; noisy: plus Gaussian noise keyed by layer
        and position; replayed: the experts come from a record (only their weights are this engine's own)
    router_noise : float      standard deviation of that noise, in logits
    router_seed : int         its address

    Raises
    ------
    InputError   an unknown choice, a noise that is not finite or negative, or noise without the noisy router

    Examples
    --------
    >>> Numerics(dtype="bfloat16", weights="int8").but(reduction="split").reduction
    'split'
    """

    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float64"
    weights: Literal["full", "int8"] = "full"
    reduction: Literal["library", "fixed", "split", "reversed"] = "library"
    cached: bool = True
    router: Literal["own", "low_precision", "noisy", "replayed"] = "own"
    router_noise: float = 0.0
    router_seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"`{name}` must be one of {', '.join(choices)}", found=repr(getattr(self, name)))
        if not isinstance(self.cached, bool):
            raise InputError("`cached` must be true or false", found=repr(self.cached))
        if not isinstance(self.router_noise, int | float) or isinstance(self.router_noise, bool):
            raise InputError("`router_noise` must be a number", found=repr(self.router_noise))
        if not (math.isfinite(self.router_noise) and self.router_noise >= 0):
            raise InputError("`router_noise` must be finite and >= 0", found=self.router_noise)
        if self.router_noise and self.router != "noisy":
            raise InputError("`router_noise` needs router='noisy'", found=f"router={self.router!r}")

    def but(self, **changes: object) -> Numerics:
        """Return these numerics with some choices changed."""
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]

    @property
    def format(self) -> torch.dtype:
        """Number format of weights and activations."""
        return DTYPES[self.dtype]

    @property
    def wide(self) -> torch.dtype:
        """Number format of norms, softmax and sums: float32 at least."""
        return torch.float64 if self.dtype == "float64" else torch.float32


def prepared(weights: Mapping[str, Tensor], numerics: Numerics) -> dict[str, Tensor]:
    """Return the weights as an engine holds them: rounded to int8 levels if it does so, then cast to its format.

    Differentiable: the gradient passes the rounding as if it were the identity.
    """
    out = {}
    for name, weight in weights.items():
        if numerics.weights == "int8" and name.endswith(QUANTIZED):
            weight = weight + (rounded_to_int8(weight) - weight).detach()
        out[name] = weight.to(numerics.format)
    return out


QUANTIZED = (".query", ".key", ".value", ".output", ".gate", ".up", ".down")
