"""How far the sampler's prefixes are from the target's, position by position, and how far single tokens are.

Correcting one token corrects the decision and not the state it was taken in; the distance between the two laws of that
state is what is left (S5).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.prefix_order import node_count
from testbed.environments.base import Environment
from testbed.exact.values import behavior_table, prefix_law
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, Schedule, one


def sampler_prefix_law(env: Environment, source: Schedule | Policy) -> Float[Tensor, " N"]:
    """Probability of each unfinished prefix under the sampler, exogenous noise averaged out.

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> sampler_prefix_law(PrefixTree(2, 2, rewards=[0.0] * 4), TabularPolicy(torch.zeros(3, 2)))
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    return torch.stack([prob * prefix_law(env, branch) for prob, branch in _branches(source)]).sum(0)


def prefix_total_variation(env: Environment, target: Policy, source: Schedule | Policy) -> Float[Tensor, " T"]:
    """Total variation between the target's and the sampler's law of h_t, for every position t.

    TV_t = 1/2 sum_h |P_sampler(h_t = h) - P_target(h_t = h)|

    Responses that ended before t count as one further outcome.

    Parameters
    ----------
    env : Environment                      up to 2^20 responses
    target : Policy
    source : PrefixSchedule, ExogenousSchedule, or a Policy (one segment)

    Returns
    -------
    Float64[Tensor, " T"]                  in [0, 1]; 0 at the first position

    Gives      TV_t <= sum_{s<t} `expected_token_total_variation`_s (S5)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 3).double()) for p in (0.5, 0.75))
    >>> prefix_total_variation(PrefixTree(2, 2, rewards=[0.0] * 4), pi, mu)
    tensor([0.0000, 0.2500], dtype=torch.float64)
    """
    difference = sampler_prefix_law(env, source) - prefix_law(env, target)
    return torch.stack([(d.abs().sum() + d.sum().abs()) / 2 for d in _by_position(env, difference)])


def expected_token_total_variation(env: Environment, target: Policy, source: Schedule | Policy) -> Float[Tensor, " T"]:
    """Sampler's mean of the total variation between the two next-token laws at h_t, for every position t.

    d_t = E_{h_t ~ sampler}[1/2 sum_y |mu(y | h_t) - pi(y | h_t)|];  0 for a response that ended before t

    Arguments as `prefix_total_variation`.

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 3).double()) for p in (0.5, 0.75))
    >>> expected_token_total_variation(PrefixTree(2, 2, rewards=[0.0] * 4), pi, mu)
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    wanted = behavior_table(env, target).exp()
    total = torch.zeros(env.horizon, dtype=torch.float64)
    for prob, branch in _branches(source):
        distance = (behavior_table(env, branch).exp() - wanted).abs().sum(1) / 2
        total += torch.stack([x.sum() for x in _by_position(env, prob * prefix_law(env, branch) * distance)])
    return total


def _branches(source: Schedule | Policy) -> list[tuple[float, PrefixSchedule]]:
    return PrefixSchedule((source,), one()).branches() if isinstance(source, Policy) else source.branches()


def _by_position(env: Environment, per_node: Float[Tensor, " N"]) -> list[Tensor]:
    """Slices of a per-prefix table, one per position."""
    size = env.vocab_size
    return [per_node[node_count(size, t) : node_count(size, t + 1)] for t in range(env.horizon)]
