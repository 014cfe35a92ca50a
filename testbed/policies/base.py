"""What a policy is: a law for the next token after every prefix, in float64 log-probabilities.

Temperature, top-k, noise and quantization are policies of their own (they have a law), never post-processing of another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

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
