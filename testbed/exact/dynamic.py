"""Exact quantities of Markov worlds by recursion over states: cost linear in the horizon, no enumeration.

State laws, the value, the true gradient and the growth of importance weights; `testbed.exact.dynamic_moments` adds the
moments of gradient estimators. `enumerate_law` is the reference on short horizons. Anything that grows geometrically is
carried as (logarithm of a scale, scaled numbers), so that horizon 512 overflows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.environments.markov import MarkovEnvironment
from testbed.exact.dynamic_tables import markov_tables
from testbed.policies.base import Policy
from testbed.policies.markov import MarkovPolicy
from testbed.policies.schedule import Schedule


def state_distribution(env: MarkovEnvironment, schedule: Schedule | Policy) -> Float[Tensor, "T1 S"]:
    """Probability of each state before every position, and after the last.

        d_0 = 1{start},    d_{t+1}(s') = sum_{s, a: f(s,a)=s'} d_t(s) mu_t(a | s)

    Examples
    --------
    >>> env = MarkovEnvironment.chain(n_states=2, horizon=1)
    >>> state_distribution(env, MarkovPolicy(torch.zeros(2, 2), env.transition))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    world = markov_tables(env, MarkovPolicy(torch.zeros(env.rewards.shape), env.transition, env.start), schedule)
    law = world.at_start()
    rows = [law]
    for label in world.segment.tolist():
        law = law @ world.kernel(world.measure("mu", label))
        rows.append(law)
    return torch.stack(rows)


def markov_action_values(env: MarkovEnvironment, pi: Policy) -> Float[Tensor, "T S A"]:
    """Value of each token in each state at every position, later tokens drawn from the policy.

    Q_t(s, a) = r_t(s, a) + V_{t+1}(f(s, a)),    V_t(s) = sum_a pi(a|s) Q_t(s, a)
    """
    world = markov_tables(env, pi, pi)
    probs = world.log_target.exp()
    following = torch.zeros(probs.shape[0], dtype=torch.float64)
    values = torch.empty_like(world.rewards)
    for t in range(env.horizon - 1, -1, -1):
        values[t] = world.rewards[t] + following[world.transition]
        following = (probs * values[t]).sum(-1)
    return values


def markov_value(env: MarkovEnvironment, pi: Policy) -> float:
    """Return the expected return of a Markov policy.

    Examples
    --------
    >>> env = MarkovEnvironment.chain(n_states=2, horizon=2)
    >>> markov_value(env, MarkovPolicy(torch.zeros(2, 2), env.transition))
    0.25
    """
    first_law = markov_tables(env, pi, pi).log_target[env.start].exp()
    return float((markov_action_values(env, pi)[0, env.start] * first_law).sum())


def markov_gradient(env: MarkovEnvironment, pi: MarkovPolicy) -> Float[Tensor, "S A"]:
    """Exact gradient of the expected return in the logits (policy-gradient theorem).

        dJ / dlogits[s, a] = sum_t d_t(s) pi(a|s) (Q_t(s, a) - V_t(s))

    Returns
    -------
    Float[Tensor, "S A"]    rows sum to 0
    """
    probs, values = pi.table.detach().exp(), markov_action_values(env, pi)
    advantage = values - (probs * values).sum(-1, keepdim=True)
    return torch.einsum("ts,sa,tsa->sa", state_distribution(env, pi)[:-1], probs, advantage)


@dataclass(frozen=True, slots=True)
class WeightGrowth:
    """Second moments of exact weights along the response, in logarithms (nats).

    Attributes
    ----------
    log_second : [T]     log E_mu[W_t^2], W_t the product of ratios through token t
    last : [K]           last position of each segment that occurs, and its label
    log_end : [K]        log E_mu[W_(k)^2], W_(k) the product through the end of segment k
    log_factor : [K]     log of E[W_(k)^2] / E[W_(k-1)^2]: the segment's d2 averaged under mu tilted by W_(k-1)^2 (S9)
    log_largest : [K]    log of the largest d2 of the segment over the states it can start in (S10: sums bound log_end)
    log_average : [K]    log of the segment's d2 averaged under mu (S10: sums bound nothing)
    """

    log_second: Float[Tensor, " T"]
    last: Int64[Tensor, " K"]
    label: Int64[Tensor, " K"]
    log_end: Float[Tensor, " K"]
    log_factor: Float[Tensor, " K"]
    log_largest: Float[Tensor, " K"]
    log_average: Float[Tensor, " K"]


def weight_growth(env: MarkovEnvironment, target: Policy, schedule: Schedule | Policy) -> WeightGrowth:
    """Exact second moments of prefix and segment weights, scaled so that no horizon overflows.

        E_mu[W_t^2; s_{t+1} = s'] = sum_{f(s,a)=s'} mu_t(a|s) rho_t(a|s)^2 E_mu[W_{t-1}^2; s_t = s]

    Examples
    --------
    >>> env = MarkovEnvironment.chain(n_states=2, horizon=2)
    >>> pi, mu = (MarkovPolicy.from_probs(torch.tensor([p, p]), env.transition) for p in ([.5, .5], [.8, .2]))
    >>> weight_growth(env, pi, mu).log_second.exp()
    tensor([1.5625, 2.4414], dtype=torch.float64)
    """
    world = markov_tables(env, target, schedule)
    kernels = {k: world.kernel(world.measure("tilt", k)) for k in set(world.segment.tolist())}
    mass, log_scale, log_second = world.at_start(), 0.0, []
    for label in world.segment.tolist():
        mass, log_scale = _rescaled(mass @ kernels[label], log_scale)
        log_second.append(log_scale)
    second = torch.tensor([0.0, *log_second], dtype=torch.float64)  # entry t: log E[W^2] of the first t tokens
    changes = torch.nonzero(world.segment.diff())[:, 0]
    last = torch.cat([changes, torch.tensor([env.horizon - 1])])
    first = torch.cat([torch.zeros(1, dtype=torch.int64), changes + 1])
    gained = second[last + 1] - torch.where(torch.isneginf(second[first]), 0.0, second[first])
    law = state_distribution(env, schedule)
    largest, average = [], []
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        ahead, scale = torch.ones_like(mass), 0.0
        for _ in range(begin, end + 1):
            ahead, scale = _rescaled(kernels[int(world.segment[end])] @ ahead, scale)
        largest.append(scale + float(ahead[law[begin] > 0].max().log()))
        average.append(scale + float((law[begin] * ahead).sum().log()))
    return WeightGrowth(
        log_second=second[1:],
        last=last,
        label=world.segment[last],
        log_end=second[last + 1],
        log_factor=gained,
        log_largest=torch.tensor(largest, dtype=torch.float64),
        log_average=torch.tensor(average, dtype=torch.float64),
    )


def _rescaled(mass: Tensor, log_scale: float) -> tuple[Tensor, float]:
    """Return mass / its sum and the logarithm of the scale taken out (all zero: -inf, mass unchanged)."""
    total = mass.sum()
    if float(total) == 0.0:
        return mass, float("-inf")
    return mass / total, log_scale + float(total.log())
