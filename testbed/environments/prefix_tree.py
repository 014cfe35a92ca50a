"""PrefixTree: an arbitrary reward on every leaf of the tree of responses, the fully general finite world."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError, TooLarge
from testbed.core.prefix_order import leaf_index, node_count, node_index
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.environments.base import Environment


class PrefixTree(Environment):
    """A finite world with one reward per response.

    Parameters
    ----------
    vocab_size, horizon : int          V >= 1 tokens, T >= 1 positions
    rewards : Float[Tensor, "V**T"]    reward of each full-length response in lexicographic order
    eos : int | None                   token that ends a response; a response that ends early has the reward of itself
                                       padded with `eos`
    token_rewards : Float[Tensor, "N V"] | None   per-step reward r(h, y) in node order (prefixes by length, then
                                       lexicographically); if given, the return is their sum plus `rewards`

    Raises
    ------
    InputError   wrong number of rewards, non-finite rewards, eos outside the vocabulary

    Examples
    --------
    >>> tree = PrefixTree(2, 2, rewards=[0.0, 1.0, 2.0, 3.0])
    >>> tree.reward(torch.tensor([[1, 0]]), torch.tensor([[True, True]]), torch.tensor([0]))
    tensor([2.], dtype=torch.float64)
    """

    def __init__(
        self,
        vocab_size: int,
        horizon: int,
        rewards: Tensor | Sequence[float],
        eos: int | None = None,
        token_rewards: Tensor | None = None,
    ) -> None:
        if vocab_size < 1 or horizon < 1:
            raise InputError("`vocab_size` and `horizon` must be >= 1", found=f"{vocab_size} and {horizon}")
        if eos is not None and not 0 <= eos < vocab_size:
            raise InputError(f"`eos` must be a token in 0..{vocab_size - 1} or None", found=eos)
        values = torch.as_tensor(rewards, dtype=torch.float64)
        if values.shape != (vocab_size**horizon,):
            raise InputError(
                f"`rewards` must hold V**T = {vocab_size}**{horizon} = {vocab_size**horizon} values",
                found=f"shape {tuple(values.shape)}",
                hint="one per response, in lexicographic order",
            )
        if not bool(torch.isfinite(values).all()):
            raise InputError("`rewards` must be finite", found=f"{int((~torch.isfinite(values)).sum())} that are not")
        nodes = node_count(vocab_size, horizon)
        if token_rewards is not None:
            require_shape("token_rewards", token_rewards, (nodes, vocab_size))
            token_rewards = token_rewards.double()
        self.vocab_size, self.horizon, self.eos = vocab_size, horizon, eos
        self.rewards, self.token_rewards = values, token_rewards

    @staticmethod
    def random(
        vocab_size: int, horizon: int, seed: SeedTree | int, eos: int | None = None, binary: bool = False
    ) -> PrefixTree:
        """Rewards drawn uniformly from [-1, 1], or fair coins with `binary`."""
        tree = SeedTree(seed) if isinstance(seed, int) else seed
        if vocab_size**horizon > 2**27:
            raise TooLarge(
                "a tree may hold up to 2^27 rewards",
                found=f"{vocab_size}^{horizon}",
                hint="a MarkovEnvironment has any horizon",
            )
        u = torch.rand(vocab_size**horizon, generator=tree["rewards"].torch_generator(), dtype=torch.float64)
        return PrefixTree(vocab_size, horizon, (u < 0.5).double() if binary else 2 * u - 1, eos)

    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Return of each response: its leaf's reward plus its per-step rewards, if any."""
        steps = self.token_reward(tokens, mask, group)
        return self._leaf_reward(tokens, mask) if steps is None else steps.sum(1)

    def token_reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, "B T"] | None:
        """Per-step rewards (the leaf's reward falls on the last real token), or None when the reward is terminal only."""
        if self.token_rewards is None:
            return None
        nodes = node_index(tokens, self.vocab_size)
        steps = torch.where(mask, self.token_rewards[nodes, tokens], torch.zeros((), dtype=torch.float64))
        last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
        return steps.scatter_add(1, last, self._leaf_reward(tokens, mask)[:, None])

    def _leaf_reward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        padded = tokens if self.eos is None else torch.where(mask, tokens, self.eos)
        return self.rewards[leaf_index(padded, self.vocab_size)]
