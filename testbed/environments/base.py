"""What an environment is: a vocabulary, a horizon, perhaps an end token, and a reward for a finished response."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float, Int64
from torch import Tensor


class Environment(ABC):
    """A reward on responses of at most `horizon` tokens; `eos` ends a response (None: all have full length)."""

    vocab_size: int
    horizon: int
    eos: int | None = None
    n_prompts: int = 1

    @abstractmethod
    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Reward of each finished response, float64."""

    def token_reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, "B T"] | None:
        """Per-step rewards whose sum is `reward`, or None when the reward is terminal."""
        return None
