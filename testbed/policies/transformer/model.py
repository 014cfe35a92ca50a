"""A transformer's weights: named leaf tensors, their flat vector, a deterministic start, and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.weight_files import read_weights, write_weights


class Transformer:
    """Weights of one transformer, kept in full precision; how an engine computes with them is its `Numerics`.

    Parameters
    ----------
    config : TransformerConfig
    weights : mapping of name to Tensor   exactly the names and shapes of `config.shapes()`; copied, made leaves

    Raises
    ------
    InputError   a weight is missing, unknown, or has the wrong shape

    Examples
    --------
    >>> model = Transformer.random(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), seed=0)
    >>> model.vector().shape, torch.equal(model.with_vector(model.vector()).vector(), model.vector())
    (torch.Size([528]), True)
    """

    def __init__(self, config: TransformerConfig, weights: Mapping[str, Tensor]) -> None:
        shapes = config.shapes()
        if weights.keys() != shapes.keys():
            found = sorted(weights.keys() ^ shapes.keys())[:4]
            raise InputError("`weights` must hold exactly the config's tensors", found=f"missing or unknown {found}")
        for name, shape in shapes.items():
            require_shape(name, weights[name], shape)
        self.config = config
        self.weights = {name: weights[name].detach().clone().requires_grad_(True) for name in shapes}

    @staticmethod
    def random(
        config: TransformerConfig,
        seed: SeedTree | int,
        *,
        dtype: torch.dtype = torch.float64,
        sharpness: float = 1.0,
    ) -> Transformer:
        """Independent Gaussian weights of variance 1 / fan-in, each tensor from its own named stream.

        Parameters
        ----------
        config : TransformerConfig
        seed : SeedTree | int      address of the streams; layers do not change when more are added
        dtype : torch.dtype        of the weights that are kept
        sharpness : float          >= 0, standard deviation of the logits, roughly (0 gives the uniform law)
        """
        if not sharpness >= 0:
            raise InputError("`sharpness` must be >= 0", found=sharpness)
        tree = (SeedTree(seed) if isinstance(seed, int) else seed)["transformer"]
        deep = (2 * config.layers) ** -0.5  # keeps the residual stream of unit size at any depth
        weights = {}
        for name, shape in config.shapes().items():
            if len(shape) == 1:
                weights[name] = torch.ones(shape, dtype=dtype)
                continue
            scale = 1.0 if name == "embedding" else shape[-1] ** -0.5
            scale *= sharpness if name == "head" else deep if name.endswith((".output", ".down")) else 1.0
            noise = torch.randn(shape, generator=tree[name].torch_generator(), dtype=torch.float64)
            weights[name] = (scale * noise).to(dtype)
        return Transformer(config, weights)

    @property
    def parameter_count(self) -> int:
        """Length of the flat parameter vector."""
        return sum(w.numel() for w in self.weights.values())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights["embedding"].device

    def parameters(self) -> list[Tensor]:
        """Return the leaf tensors, in the order of the flat vector, for an optimizer."""
        return list(self.weights.values())

    def vector(self) -> Float[Tensor, " P"]:
        """All weights in one flat vector (a copy, without a graph)."""
        return flatten(self.weights.values()).detach()

    def with_vector(self, vector: Float[Tensor, " P"]) -> Transformer:
        """Build the transformer of the same shape whose flat vector this is."""
        return Transformer(self.config, unflatten(vector, self.config))

    def copy(self) -> Transformer:
        """Copy the weights: what an optimizer does to one is not seen by the other."""
        return Transformer(self.config, self.weights)

    def save(self, path: Path | str) -> None:
        """Write config and weights to one .npz file."""
        write_weights(path, self.config, self.weights)

    @staticmethod
    def load(path: Path | str) -> Transformer:
        """Read what `save` wrote.

        Raises
        ------
        InputError   no such file, a folder, a damaged file, one that holds no transformer, or another one's weights
        """
        return Transformer(*read_weights(path))


def flatten(tensors: Iterable[Tensor]) -> Float[Tensor, " P"]:
    """Concatenate tensors into one vector, each in row-major order."""
    return torch.cat([w.reshape(-1) for w in tensors])


def unflatten(vector: Float[Tensor, " P"], config: TransformerConfig) -> dict[str, Tensor]:
    """Cut a flat vector into the named weights of a config (views).

    Raises
    ------
    InputError   if the length is not the config's parameter count
    """
    require_shape("vector", vector, (config.parameter_count(),))
    out, start = {}, 0
    for name, shape in config.shapes().items():
        size = int(np.prod(shape))
        out[name] = vector[start : start + size].view(shape)
        start += size
    return out
