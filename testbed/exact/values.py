"""Values of prefixes by backward induction: what continuing with a policy, or with a schedule, is worth."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.prefix_order import node_count, node_index
from testbed.environments.base import Environment
from testbed.exact.law import require_enumerable, response_table
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, one


def behavior_table(env: Environment, source: PrefixSchedule | Policy) -> Float[Tensor, "N V"]:
    """Log-probabilities of the next token after every prefix, for a policy or a realized schedule."""
    require_enumerable(env)
    schedule = PrefixSchedule((source,), one()) if isinstance(source, Policy) else source
    return schedule.log_prob_table(env.vocab_size, env.horizon)


def action_values(env: Environment, source: PrefixSchedule | Policy) -> Float[Tensor, "N V"]:
    """Expected return of taking token y after prefix h and then continuing with `source`.

    Q(h, y) = E[R | h, y];  Q(h, y) = R(hy) at the end, else sum_y' mu(y'|hy) Q(hy, y')

    The whole return is counted (rewards earned before h included), which is what multiplies a score.
    Values after an ended response are 0.

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> action_values(PrefixTree(2, 1, rewards=[1.0, 3.0]), TabularPolicy(torch.zeros(1, 2)))
    tensor([[1., 3.]], dtype=torch.float64)
    """
    size, horizon = env.vocab_size, env.horizon
    probs = behavior_table(env, source).exp()
    tokens, mask = response_table(env)
    reward = env.reward(tokens, mask, torch.zeros(tokens.shape[0], dtype=torch.int64))
    last = mask.sum(1) - 1
    rows = torch.arange(tokens.shape[0])
    q = torch.zeros(node_count(size, horizon), size, dtype=torch.float64)
    q[node_index(tokens, size)[rows, last], tokens[rows, last]] = reward
    for t in range(horizon - 2, -1, -1):
        here = slice(node_count(size, t), node_count(size, t + 1))
        below = slice(node_count(size, t + 1), node_count(size, t + 2))
        value = (probs[below] * q[below]).sum(1).reshape(-1, size)
        if env.eos is not None:
            keep = torch.arange(size) == env.eos
            value = torch.where(keep, q[here], value)
        q[here] = value
    return q


def state_values(env: Environment, source: PrefixSchedule | Policy) -> Float[Tensor, " N"]:
    """Expected return after each prefix when continuing with `source`: V(h) = sum_y mu(y|h) Q(h, y).

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> state_values(PrefixTree(2, 1, rewards=[1.0, 3.0]), TabularPolicy(torch.zeros(1, 2)))
    tensor([2.], dtype=torch.float64)
    """
    return (behavior_table(env, source).exp() * action_values(env, source)).sum(1)


def prefix_law(env: Environment, source: PrefixSchedule | Policy) -> Float[Tensor, " N"]:
    """Probability that a response passes through each prefix, unfinished (0 after `eos`).

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> prefix_law(PrefixTree(2, 2, rewards=[0.0] * 4), TabularPolicy(torch.zeros(3, 2)))
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    size, horizon = env.vocab_size, env.horizon
    if size < 1:
        raise InputError("`vocab_size` must be >= 1", found=size)
    probs = behavior_table(env, source).exp()
    reach = torch.zeros(node_count(size, horizon), dtype=torch.float64)
    reach[0] = 1.0
    for t in range(horizon - 1):
        here = slice(node_count(size, t), node_count(size, t + 1))
        step = reach[here][:, None] * probs[here]
        if env.eos is not None:
            step[:, env.eos] = 0.0
        reach[node_count(size, t + 1) : node_count(size, t + 2)] = step.reshape(-1)
    return reach
