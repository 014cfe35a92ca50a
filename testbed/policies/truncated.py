"""Temperature, top-k and nucleus sampling as policies: what the sampler draws from has a law, and this is it.

A target scored on the unfiltered law gives every kept token the same ratio, the surviving mass, and no weight brings
back the tokens that were cut (BR-28). Temperature acts on logits: log-probabilities divided by it must be normalized
again (BR-30).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.base import Decoder, MappedDecoder, Policy

ROUNDING = (
    1e-6  # a nucleus is complete when its mass is within this of `top_p`: 0.5 + 0.3 given in float32 counts as 0.8
)


class Truncated(Policy):
    """A policy seen through temperature, then top-k, then top-p, renormalized.

        q_T = softmax(log pi / temperature)
        kept = the top_k most probable tokens; of these, renormalized, the fewest most probable ones with mass >= top_p
        mu(y | h) = q_T(y | h) / q_T(kept | h) on kept tokens, 0 elsewhere

    Tokens of equal probability are ranked by id: the lower id is kept first. The most probable token is always kept.

    Parameters
    ----------
    policy : Policy              the law before filtering
    temperature : float          > 0, finite; 1 leaves the law alone (for greedy use top_k=1)
    top_k : int | None           >= 1; None, or at least the vocabulary, keeps all
    top_p : float | None         in (0, 1]; None or 1 keeps all

    Raises
    ------
    InputError   if a knob is outside its range

    Gives      zero-probability tokens have log-probability -inf; for a target at the same temperature every kept ratio
               is `surviving_mass` (C15)

    Examples
    --------
    >>> from testbed.policies.tabular import TabularPolicy
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64))
    >>> mu, empty = Truncated(pi, top_p=0.8), torch.empty(1, 0, dtype=torch.int64)
    >>> mu.next_log_probs(empty).exp(), mu.surviving_mass(empty)
    (tensor([[0.6250, 0.3750, 0.0000, 0.0000]], dtype=torch.float64), tensor([0.8000], dtype=torch.float64))
    """

    def __init__(
        self, policy: Policy, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError("`temperature` must be finite and > 0", found=temperature, hint="for greedy use top_k=1")
        if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
            raise InputError("`top_k` must be an integer >= 1, or None", found=top_k, hint="None keeps every token")
        if top_p is not None and not 0 < top_p <= 1:
            raise InputError("`top_p` must lie in (0, 1], or be None", found=top_p, hint="None keeps every token")
        self.policy, self.vocab_size = policy, policy.vocab_size
        self.temperature, self.top_k, self.top_p = float(temperature), top_k, top_p

    def tempered(self, log_probs: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
        """Log law after temperature, before any token is cut."""
        if self.temperature == 1.0:
            return log_probs.double()
        return torch.log_softmax(log_probs.double() / self.temperature, -1)

    def kept(self, log_probs: Float[Tensor, "*B V"]) -> Tensor:
        """Boolean [*B, V]: the tokens that survive, given the log law before temperature."""
        law, rank = torch.sort(self.tempered(log_probs), dim=-1, descending=True, stable=True)
        keep = torch.isfinite(law)
        if self.top_k is not None:
            keep[..., self.top_k :] = False
        if self.top_p is not None and self.top_p < 1:
            probs = torch.softmax(torch.where(keep, law, float("-inf")), -1)
            before = probs.cumsum(-1) - probs
            keep &= before < self.top_p - ROUNDING
        keep[..., 0] = True
        return torch.zeros_like(keep).scatter(-1, rank, keep)

    def filter(self, log_probs: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
        """Map a log law (any leading shape) to the filtered, renormalized one; a row that loses none is unchanged."""
        law, keep = self.tempered(log_probs), self.kept(log_probs)
        whole = (keep | torch.isneginf(law)).all(-1, keepdim=True)
        return torch.where(whole, law, torch.log_softmax(torch.where(keep, law, float("-inf")), -1))

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the next token; -inf on tokens that were cut."""
        return self.filter(self.policy.next_log_probs(prefix))

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position of each response."""
        return self.filter(self.policy.log_probs(tokens))

    def at(self, group: Int64[Tensor, " B"]) -> Truncated:
        """Filter the law that answers these prompts."""
        inner = self.policy.at(group)
        return self if inner is self.policy else Truncated(inner, self.temperature, self.top_k, self.top_p)

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Filter what the wrapped policy's own decoder says."""
        return MappedDecoder([self.policy.decoder(group)], lambda prefix, law: self.filter(law))

    def surviving_mass(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, " B"]:
        """Probability of the kept tokens under the tempered, unfiltered law: the ratio an unfiltered target reports."""
        before = self.policy.next_log_probs(prefix)
        return torch.where(self.kept(before), self.tempered(before).exp(), 0.0).sum(-1)
