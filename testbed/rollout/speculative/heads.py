"""Future-token heads: from the stream at one position, laws of the tokens two, three, ... positions on.

The model's own output layer, frozen and shared, reads every head; a head only moves the stream by one gated residual block.
At the start the blocks are zero and every head repeats the model's next-token law.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.forward import next_token_laws
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import linear, rms_norm, silu
from testbed.policies.transformer.policy import TransformerPolicy


class FutureHeads:
    """K heads on a transformer's stream.

        h_k = h + SiLU(W_k RMSNorm(h) + b_k),   q_k = softmax(output layer of h_k),   k = 1 .. K

    From the stream that the law of position t is read from, head k speaks of position t + k. It is a marginal: it does not
    know the tokens in between.

    Parameters
    ----------
    config : TransformerConfig
    count : int                heads, >= 1
    dtype, device : of their weights

    Raises
    ------
    InputError   no head

    Examples
    --------
    >>> heads = FutureHeads(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), 3)
    >>> heads.moved(torch.ones(2, 8, dtype=torch.float64)).shape, heads.parameter_count
    (torch.Size([2, 3, 8]), 216)
    """

    def __init__(
        self,
        config: TransformerConfig,
        count: int = 3,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if count < 1:
            raise InputError("`count` must be >= 1", found=count)
        self.config, self.count = config, count
        self.matrix = torch.zeros(count, config.width, config.width, dtype=dtype, device=device, requires_grad=True)
        self.bias = torch.zeros(count, config.width, dtype=dtype, device=device, requires_grad=True)
        self.unit = torch.ones(config.width, dtype=dtype, device=device)

    def parameters(self) -> list[Tensor]:
        """Leaf tensors, for an optimizer."""
        return [self.matrix, self.bias]

    @property
    def parameter_count(self) -> int:
        """Numbers that are learned."""
        return sum(x.numel() for x in self.parameters())

    def copy(self) -> FutureHeads:
        """Copy the weights: what an optimizer does to one is not seen by the other."""
        out = FutureHeads(self.config, self.count, dtype=self.matrix.dtype, device=self.matrix.device)
        with torch.no_grad():
            out.matrix.copy_(self.matrix)
            out.bias.copy_(self.bias)
        return out

    def moved(self, state: Float[Tensor, "*B d"], numerics: Numerics | None = None) -> Float[Tensor, "*B K d"]:
        """Each head's stream h_k."""
        numerics = numerics or Numerics()
        matrix, bias = self.matrix.to(state.dtype), self.bias.to(state.dtype)
        normed = rms_norm(state, self.unit, self.config.epsilon, numerics)
        inner = linear(normed, matrix.reshape(-1, matrix.shape[-1]), numerics)
        inner = inner.reshape(*state.shape[:-1], self.count, state.shape[-1]) + bias
        return state[..., None, :] + silu(inner, numerics)

    def log_laws(
        self, state: Float[Tensor, "*B d"], weights: Mapping[str, Tensor], numerics: Numerics | None = None
    ) -> Float[Tensor, "*B K V"]:
        """Float64 log-probabilities of every head, given the weights of the model whose stream this is."""
        numerics = numerics or Numerics()
        return next_token_laws(self.moved(state, numerics), weights, self.config, numerics)

    @staticmethod
    def of(policy: TransformerPolicy, count: int = 3) -> FutureHeads:
        """Return new heads for a policy's model, on its device, in its engine's format (float32 at least)."""
        return FutureHeads(policy.config, count, dtype=policy.numerics.wide, device=policy.model.device)
