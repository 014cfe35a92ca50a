"""What a policy is: a law for the next token after every prefix, in float64 log-probabilities.

Temperature, top-k, noise and quantization are policies of their own (they have a law), never post-processing of another's.
A policy that answers prompts is conditioned on them by `at`; an engine asks for laws through a `Decoder`, which may keep
what it saw of each response.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError


class Policy(ABC):
    """A next-token law after every prefix."""

    vocab_size: int

    @abstractmethod
    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log-probabilities (nats) of the next token after each prefix row; each row sums to 1 in probability."""

    def at(self, group: Int64[Tensor, " B"]) -> Policy:
        """Condition the law on a prompt per row: what it returns is asked about exactly these rows, in this order.

        A policy without prompts is its own answer.
        """
        return self

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Open a decoder for responses to these prompts, one per row."""
        return Decoder(self, group)

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log-probabilities at every position of each row: position t is conditioned on tokens[:, :t]."""
        return torch.stack([self.next_log_probs(tokens[:, :t]) for t in range(tokens.shape[1])], 1)

    def score(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability of the token at every position."""
        return self.log_probs(tokens).gather(-1, tokens[..., None])[..., 0]

    def score_terms(self, tokens: Int64[Tensor, "B T"], coefficient: Float[Tensor, "B T"]) -> Float[Tensor, "B ..."]:
        """sum_t coefficient[b, t] * grad log pi(y_t | h_t), one gradient per response, shaped like the parameters."""
        raise InputError(
            "gradient terms need a policy with differentiable parameters",
            found=type(self).__name__,
            hint="use TabularPolicy or MarkovPolicy as the target",
        )


class Decoder:
    """Next-token laws of responses that grow: opened for B rows, asked about some of them at a time.

    The default remembers nothing. A decoder that does (a key-value cache, a running state) may rely on this: a row's
    tokens never change once shown, so only those it has not seen of that row need be fed. It may not rely on more: rows
    come in any order and number, and a row that another policy wrote for a while comes back several tokens longer.

    Parameters
    ----------
    policy : Policy                  whose law this is
    group : Int64[Tensor, " B"]      prompt of each row

    Examples
    --------
    >>> from testbed.policies.tabular import TabularPolicy
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]]))
    >>> decoder = pi.decoder(torch.tensor([0, 0]))
    >>> decoder.next_log_probs(torch.tensor([[1]]), rows=torch.tensor([1])).exp()
    tensor([[0.3000, 0.7000]], dtype=torch.float64)
    """

    def __init__(self, policy: Policy, group: Int64[Tensor, " B"]) -> None:
        self.policy, self.group = policy, group

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the token after each prefix; prefix i is that of row `rows[i]`, each row at most once."""
        return self.policy.at(self.group[rows]).next_log_probs(prefix)


class MappedDecoder(Decoder):
    """Decoder of a wrapper: a function of the prefix and of the wrapped policies' laws after it, which stay cached.

    Parameters
    ----------
    decoders : sequence of Decoder   of the wrapped policies, opened for the same rows
    law : (prefix [b, t], *laws [b, V]) -> [b, V]
    """

    def __init__(self, decoders: Sequence[Decoder], law: Callable[..., Tensor]) -> None:
        self.decoders, self.law = tuple(decoders), law

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the token after each prefix, each wrapped decoder asked once."""
        return self.law(prefix, *(decoder.next_log_probs(prefix, rows) for decoder in self.decoders))
