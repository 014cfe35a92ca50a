"""One layer that continues the target's own stream: from the stream at a token and the token after it, the stream there.

A token's feature is the target's residual stream at its position, from which the law of the next token is read. The layer
predicts the next feature, and the target's own norm and output layer, frozen and shared, read a law from it; so the layer
can go on from what it predicted, token after token, where heads can only guess each depth apart from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.seeds import SeedTree
from testbed.policies.transformer.block import Place, block
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.forward import next_token_laws
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import linear
from testbed.policies.transformer.policy import TransformerPolicy

ENDS = (".output", ".down")  # matrices that write to the stream: zero at the start


class FeatureLayer:
    """A dense transformer layer on pairs of a feature and the token that came after it.

        g_s+1 = layer(W [embedding(y_s+1), f_s]),   q(. | y_1 .. y_s+1) = softmax(output layer of g_s+1)

    f_s is the target's feature of token s, or, beyond what the target has seen, the g_s predicted there. The pair of token s + 1
    stands at position s and attends to the pairs before it. At the start W passes the feature on and the layer adds nothing:
    g_s+1 = f_s.

    Parameters
    ----------
    config : TransformerConfig    of the target, dense or a mixture; the layer has its width, heads and positions
    hidden : int | None           inner width; None: what acts on one token in a layer of the target
    seed : SeedTree | int         address of the start
    dtype, device : of the weights

    Raises
    ------
    InputError   an inner width below 1

    Examples
    --------
    >>> layer = FeatureLayer(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8))
    >>> layer.weights["fuse"].shape, layer.parameter_count
    (torch.Size([8, 16]), 592)
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        hidden: int | None = None,
        seed: SeedTree | int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if hidden is None:
            hidden = config.hidden * (config.experts_per_token if config.experts else 1)
        self.config = replace(config, layers=1, experts=0, hidden=hidden)
        tree = (SeedTree(seed) if isinstance(seed, int) else seed)["feature layer"]
        d = config.width
        self.weights = {"fuse": torch.cat([torch.zeros(d, d), torch.eye(d)], 1)}
        for name, shape in self.config.shapes().items():
            if not name.startswith("layer0."):
                continue
            weight = torch.ones(shape)
            if len(shape) > 1:
                noise = torch.randn(shape, generator=tree[name].torch_generator(), dtype=torch.float64)
                weight = noise * (0.0 if name.endswith(ENDS) else shape[-1] ** -0.5)
            self.weights[name] = weight
        self.weights = {n: w.to(device, dtype).requires_grad_(True) for n, w in self.weights.items()}

    def parameters(self) -> list[Tensor]:
        """Leaf tensors, for an optimizer."""
        return list(self.weights.values())

    @property
    def parameter_count(self) -> int:
        """Numbers that are learned."""
        return sum(x.numel() for x in self.parameters())

    def copy(self) -> FeatureLayer:
        """Copy the weights: what an optimizer does to one is not seen by the other."""
        like = self.weights["fuse"]
        out = FeatureLayer(self.config, hidden=self.config.hidden, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            for name, weight in self.weights.items():
                out.weights[name].copy_(weight)
        return out

    def predicted(
        self,
        features: Float[Tensor, "B c d"],
        tokens: Int64[Tensor, "B c"],
        weights: Mapping[str, Tensor],
        place: Place,
        numerics: Numerics | None = None,
    ) -> Float[Tensor, "B c d"]:
        """Feature of each token, from the feature of the token before it.

        Parameters
        ----------
        features : Float[Tensor, "B c d"]   of the tokens before
        tokens : Int64[Tensor, "B c"]       the tokens whose features are predicted
        weights : mapping                   of the target
        place : Place                       positions of the pairs (those of the tokens before), and what they attend to
        numerics : Numerics | None          of the target
        """
        own = {name: weight.to(features.dtype) for name, weight in self.weights.items()}
        pair = torch.cat([weights["embedding"][tokens], features], -1)
        fused = linear(pair, own["fuse"], numerics or Numerics())
        return block(fused, own, 0, place, self.config, numerics or Numerics())[0]

    def log_laws(
        self, features: Float[Tensor, "*B d"], weights: Mapping[str, Tensor], numerics: Numerics | None = None
    ) -> Float[Tensor, "*B V"]:
        """Float64 log-probabilities of the token after each feature, given the target's weights."""
        return next_token_laws(features, weights, self.config, numerics or Numerics())

    @staticmethod
    def of(policy: TransformerPolicy, *, hidden: int | None = None, seed: SeedTree | int = 0) -> FeatureLayer:
        """Return a new layer for a policy's model, on its device, in its engine's format (float32 at least)."""
        dtype, device = policy.numerics.wide, policy.model.device
        return FeatureLayer(policy.config, hidden=hidden, seed=seed, dtype=dtype, device=device)
