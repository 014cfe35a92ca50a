"""What a normalizer optimizes: gradients of expectations of a reward and a length, by differentiating the enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.prefix_order import leaf_index
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import response_table
from theory.symbols import Prefix, SymbolicWorld
from theory.worlds import World


def objective_gradient(world: World, value: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Gradient of E_pi[value(R, L)], L the length: that of a world in which the value is the reward.

    Examples
    --------
    >>> from theory.worlds import standard_worlds
    >>> w = standard_worlds()[0]  # all responses have two tokens
    >>> half = objective_gradient(w, lambda reward, length: reward / length)
    >>> bool((2 * half - exact_gradient(w.env, w.target)).abs().max() < 1e-15)
    True
    """
    env = world.env
    tokens, mask = response_table(env)
    reward = env.reward(tokens, mask, torch.zeros(len(tokens), dtype=torch.int64))
    padded = tokens if env.eos is None else torch.where(mask, tokens, env.eos)
    rewards = torch.zeros(env.vocab_size**env.horizon, dtype=torch.float64)
    rewards[leaf_index(padded, env.vocab_size)] = value(reward, mask.sum(1).double()).double()
    return exact_gradient(PrefixTree(env.vocab_size, env.horizon, rewards, env.eos), world.target)


def symbolic_gradient(w: SymbolicWorld, value: Callable[[Prefix], Any]) -> list[sp.Expr]:
    """Gradient of E_pi[value(y)] over symbols, the value held fixed: one symbol per response while differentiating."""
    frozen = {y: sp.Symbol(f"v_{''.join(map(str, y))}") for y in w.leaves}
    objective = sp.Add(*[w.prob_pi(y) * v for y, v in frozen.items()])
    given = {v: value(y) for y, v in frozen.items()}
    return [w.logit_derivative(objective, h, b).xreplace(given) for h, b in w.parameters]
