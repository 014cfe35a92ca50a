"""The law a sampler really draws from: the policy its one-token steps define."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.base import Policy
from testbed.policies.transformer.decoder import CachedDecoder
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.routing import Routes


class StepwisePolicy(Policy):
    """A transformer whose laws come from its decoder, token after token, never from a pass over the whole response.

    Wrap a policy whose decoder draws, and whatever needs the behavior's law (enumeration, scoring) sees the numbers that
    the decoder would have recorded.

    Examples
    --------
    >>> from testbed.policies.transformer import Numerics, Transformer, TransformerConfig
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0), numerics=Numerics(reduction="fixed"))
    >>> tokens = torch.tensor([[0, 1, 2, 2]])
    >>> torch.equal(StepwisePolicy(pi).log_probs(tokens), pi.log_probs(tokens))
    True
    """

    def __init__(self, policy: TransformerPolicy) -> None:
        self.policy, self.vocab_size = policy, policy.vocab_size

    def at(self, group: Int64[Tensor, " B"]) -> StepwisePolicy:
        """Condition on a prompt per row."""
        return StepwisePolicy(self.policy.at(group))

    def decoder(self, group: Int64[Tensor, " B"]) -> CachedDecoder:
        """Open the decoder that defines this law."""
        return self.policy.decoder(group)

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law after the prefix, which is fed one token at a time."""
        last = torch.zeros(prefix.shape[0], 1, dtype=torch.int64, device=prefix.device)
        return self.log_probs(torch.cat([prefix, last], 1))[:, -1]

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position, as the decoder gives it."""
        return self.stepped(tokens)[0]

    def routes(self, tokens: Int64[Tensor, "B T"]) -> Routes:
        """Experts that acted in the steps."""
        return self.stepped(tokens)[1].routes()

    def stepped(self, tokens: Int64[Tensor, "B T"]) -> tuple[Float[Tensor, "B T V"], CachedDecoder]:
        """Laws at every position, and the decoder that gave them."""
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        group = torch.zeros_like(rows) if self.policy.group is None else self.policy.group
        decoder = self.policy.decoder(group)
        laws = [decoder.next_log_probs(tokens[:, :t], rows) for t in range(tokens.shape[1])]
        empty = torch.zeros(*tokens.shape, self.vocab_size, dtype=torch.float64, device=tokens.device)
        return (torch.stack(laws, 1) if laws else empty), decoder
