"""Markov environments: rewards that depend on a state driven by the tokens, for horizons far beyond enumeration.

Transitions are deterministic, so the state is a function of the prefix and every theorem about prefix-measurable
boundaries applies word for word. `enumerate_law` gives exact moments on small horizons, `testbed.exact.dynamic` on any.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.environments.base import Environment


class MarkovEnvironment(Environment):
    """Fixed-length responses that walk over states and collect a reward at every step.

        s_{t+1} = transition[s_t, y_t],     R(y) = sum_t rewards[s_t, y_t] + terminal_rewards[s_{T+1}]

    Parameters
    ----------
    n_states, n_actions, horizon : int     each at least 1; `n_actions` is the vocabulary
    transition : Int64[Tensor, "S A"]      next state, deterministic
    rewards : Float[Tensor, "S A"]         reward of a step, finite
    terminal_rewards : Float[Tensor, " S"] | None     reward of the final state, credited to the last token; None = 0
    start : int                            state before the first token

    Raises
    ------
    InputError   if a shape disagrees, a next state does not exist, or a reward is not finite

    Examples
    --------
    >>> world = MarkovEnvironment.chain(n_states=3, horizon=3)
    >>> tokens = torch.tensor([[1, 1, 1], [1, 0, 1]])
    >>> world.reward(tokens, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64))
    tensor([1., 0.], dtype=torch.float64)
    """

    def __init__(
        self,
        n_states: int,
        n_actions: int,
        horizon: int,
        transition: Tensor,
        rewards: Tensor,
        terminal_rewards: Tensor | None = None,
        start: int = 0,
    ) -> None:
        for name, size in (("n_states", n_states), ("n_actions", n_actions), ("horizon", horizon)):
            if int(size) < 1:
                raise InputError(f"`{name}` must be at least 1", found=size)
        require_shape("transition", transition, (n_states, n_actions))
        require_shape("rewards", rewards, (n_states, n_actions))
        terminal = torch.zeros(n_states, dtype=torch.float64) if terminal_rewards is None else terminal_rewards
        require_shape("terminal_rewards", terminal, (n_states,))
        if transition.is_floating_point() or int(transition.min()) < 0 or int(transition.max()) >= n_states:
            raise InputError(
                f"`transition` must hold integer states in 0..{n_states - 1}",
                found=f"{transition.dtype} from {transition.min().item()} to {transition.max().item()}",
                hint="transitions are deterministic: the state is a function of the prefix",
            )
        if not (bool(torch.isfinite(rewards).all()) and bool(torch.isfinite(terminal).all())):
            raise InputError("rewards must be finite", found="NaN or infinity in `rewards` or `terminal_rewards`")
        if not 0 <= int(start) < n_states:
            raise InputError(f"`start` must lie in 0..{n_states - 1}", found=start)
        self.n_states, self.vocab_size, self.horizon, self.eos = int(n_states), int(n_actions), int(horizon), None
        self.transition, self.start = transition.to(torch.int64), int(start)
        self.rewards, self.terminal_rewards = rewards.double(), terminal.double()

    @staticmethod
    def random(
        n_states: int, n_actions: int, horizon: int, seed: SeedTree | int, terminal: bool = True
    ) -> MarkovEnvironment:
        """Draw uniform next states and rewards uniform in [-1, 1] (final states too, if `terminal`)."""
        stream = (SeedTree(seed) if isinstance(seed, int) else seed)["markov_environment"]
        table = torch.randint(n_states, (n_states, n_actions), generator=stream["transition"].torch_generator())
        rewards = torch.rand(n_states, n_actions, generator=stream["rewards"].torch_generator(), dtype=torch.float64)
        last = torch.rand(n_states, generator=stream["terminal"].torch_generator(), dtype=torch.float64)
        final = 2 * last - 1 if terminal else None
        return MarkovEnvironment(n_states, n_actions, horizon, table, 2 * rewards - 1, final)

    @staticmethod
    def chain(n_states: int, horizon: int) -> MarkovEnvironment:
        """Corridor with two tokens: 1 steps right, 0 returns to the start; stepping right from the last state pays 1.

        The last state is absorbing under token 1, so only an unbroken run of n_states steps to the right is paid.
        """
        state = torch.arange(n_states)
        transition = torch.stack([torch.zeros_like(state), (state + 1).clamp(max=n_states - 1)], dim=1)
        rewards = torch.zeros(n_states, 2, dtype=torch.float64)
        rewards[-1, 1] = 1.0
        return MarkovEnvironment(n_states, 2, horizon, transition, rewards)

    def states(self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Int64[Tensor, "B T+1"]:
        """State before each token, and after the last; padding leaves the state where it is."""
        state = torch.full((tokens.shape[0],), self.start, dtype=torch.int64, device=tokens.device)
        path = [state]
        for t in range(tokens.shape[1]):
            on = mask[:, t]
            state = torch.where(on, self.transition[state, torch.where(on, tokens[:, t], 0)], state)
            path.append(state)
        return torch.stack(path, dim=1)

    def token_reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, "B T"]:
        """Reward of each token; the final state's reward is credited to the last token, so rows sum to `reward`."""
        path = self.states(tokens, mask)
        step = torch.where(mask, self.rewards[path[:, :-1], torch.where(mask, tokens, 0)], 0.0)
        after = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
        return step + torch.where(mask & ~after, self.terminal_rewards[path[:, 1:]], 0.0)

    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Total reward of each response: the sum of its token rewards, the final state's reward included."""
        return self.token_reward(tokens, mask, group).sum(-1)
