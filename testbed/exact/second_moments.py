"""How second moments of importance weights grow: token by token, segment by segment, from the history each one starts in.

    E_mu[W_(k)^2] = E_mu[W_(k-1)^2 d2_k(H)],     d2_k(h) = E_mu[(product of segment k's ratios)^2 | it starts after h]

so the growth of segment k is d2_k averaged not under mu but under mu *tilted* by the weight so far (S9, S11). The largest
d2_k bounds that factor; the average under mu bounds nothing (S10). Tables here come from the policies alone, by backward
induction over prefixes; `testbed.exact.dynamic.weight_growth` answers the same for Markov worlds of any horizon.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.prefix_order import node_count, node_index
from testbed.environments.base import Environment
from testbed.exact.law import ExactLaw
from testbed.exact.ratio_moments import powered_measure, tilted_mean
from testbed.exact.values import behavior_table
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, Schedule, one
from testbed.weighting.segment_ends import segment_end_log_ratios


def segment_d2(env: Environment, target: Policy, source: PrefixSchedule | Policy) -> Float[Tensor, "K N"]:
    """Second moment of what is still to come of each segment's ratios, from every prefix.

        u_k(h) = E_mu[ prod_{t >= |h|, S_t = k} rho_t^2 | h ],     d2_k(h) = u_k(h) where segment k starts after h

    Parameters
    ----------
    env : Environment
    target : Policy
    source : PrefixSchedule or Policy    one realization of the schedule; a policy is one segment

    Returns
    -------
    Float64[Tensor, "K N"]   per segment label and prefix, in node order; 1 after the segment; before the segment the
                             average of d2_k under mu. Prefixes past the end of a response carry no meaning

    Raises
    ------
    InputError   a schedule that breaks its rules
    Assumes      every behavior supports the target
    Gives        S9-S11; at the root u_k is the mu-average of d2_k
    Numerics     linear in V^T; overflows to inf, never to NaN

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, cuts
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([p] * 3)) for p in ([0.5, 0.5], [0.8, 0.2]))
    >>> segment_d2(PrefixTree(2, 2, rewards=[0.0] * 4), pi, PrefixSchedule((mu, mu), cuts((1,))))
    tensor([[1.5625, 1.0000, 1.0000],
            [1.5625, 1.5625, 1.5625]], dtype=torch.float64)
    """
    schedule = PrefixSchedule((source,), one()) if isinstance(source, Policy) else source
    size, horizon = env.vocab_size, env.horizon
    log_target, log_mu = behavior_table(env, target), behavior_table(env, schedule)
    drawn, squared = log_mu.exp(), powered_measure(log_target, log_mu, 2.0)
    label = schedule.segment_table(size, horizon)
    tables = []
    for k in range(len(schedule.policies)):
        step = torch.where((label == k)[:, None], squared, drawn)  # before segment k: an average under mu
        rest = torch.ones(node_count(size, horizon), dtype=torch.float64)
        for t in range(horizon - 1, -1, -1):
            here = slice(node_count(size, t), node_count(size, t + 1))
            below = slice(node_count(size, t + 1), node_count(size, t + 2))
            ahead = rest[below].reshape(-1, size) if t < horizon - 1 else torch.ones(size**t, size).double()
            if env.eos is not None:
                ahead = torch.where(torch.arange(size) == env.eos, 1.0, ahead)
            summed = torch.where(step[here] > 0, step[here] * ahead, 0.0).sum(1)
            rest[here] = torch.where(label[here] > k, 1.0, summed)
        tables.append(rest)
    return torch.stack(tables)


def start_histories(law: ExactLaw, k: int) -> Int64[Tensor, " N"]:
    """Number of each response's history at the start of segment k: equal exactly for responses that share it.

    A history is what is decided before segment k: the tokens of earlier segments and the realized noise of the schedule.

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, cuts, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> law = enumerate_law(PrefixTree(2, 2, rewards=[0.0] * 4), pi, PrefixSchedule((pi, pi), cuts((1,))))
    >>> start_histories(law, 0).tolist(), start_histories(law, 1).tolist()
    ([0, 0, 0, 0], [0, 0, 1, 1])
    """
    batch = law.batch
    decided = torch.where((batch.segment < k) & batch.mask, batch.tokens, -1)
    return torch.unique(torch.cat([law.branch[:, None], decided], 1), dim=0, return_inverse=True)[1]


def start_d2(law: ExactLaw, env: Environment, target: Policy, schedule: Schedule | Policy) -> Float[Tensor, "N K"]:
    """d2_k(H) of each response: H is its history where segment k starts, with the realized noise of the schedule.

    Parameters
    ----------
    law : ExactLaw       responses of the sampler, as `enumerate_law(env, target, schedule)` gives them
    env, target, schedule

    Returns
    -------
    Float64[Tensor, "N K"]   1 where the response ends before segment k or the segment is empty

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, cuts, enumerate_law
    >>> tree, pi = PrefixTree(2, 2, rewards=[0.0] * 4), TabularPolicy.from_probs(torch.tensor([[0.5, 0.5]] * 3))
    >>> mu = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [0.8, 0.2], [0.5, 0.5]]))
    >>> schedule = PrefixSchedule((mu, mu), cuts((1,)))
    >>> start_d2(enumerate_law(tree, pi, schedule), tree, pi, schedule)[:, 1]
    tensor([1.5625, 1.5625, 1.0000, 1.0000], dtype=torch.float64)
    """
    branches = [(1.0, PrefixSchedule((schedule,), one()))] if isinstance(schedule, Policy) else schedule.branches()
    tables = torch.stack([segment_d2(env, target, realized) for _, realized in branches])
    batch = law.batch
    nodes = node_index(batch.tokens, env.vocab_size)
    columns = []
    for k in range(tables.shape[1]):
        before = ((batch.segment < k) & batch.mask).sum(1)
        inside = before < batch.lengths
        node = nodes.gather(1, before.clamp(max=batch.horizon - 1)[:, None])[:, 0]
        columns.append(torch.where(inside, tables[law.branch, k, node], 1.0))
    return torch.stack(columns, 1)


@dataclass(frozen=True, slots=True)
class SegmentMoments:
    """Second moments segment by segment; every field is [K].

    Attributes
    ----------
    second : E_mu[W_(k)^2], W_(k) the product through the end of segment k
    factor : d2_k averaged under mu tilted by W_(k-1)^2: second_k / second_{k-1} (S9)
    largest : largest d2_k over the histories mu can reach: products bound `second` (S10)
    average : d2_k averaged under mu: products bound nothing (S10)
    """

    second: Float[Tensor, " K"]
    factor: Float[Tensor, " K"]
    largest: Float[Tensor, " K"]
    average: Float[Tensor, " K"]


def segment_moments(law: ExactLaw, env: Environment, target: Policy, schedule: Schedule | Policy) -> SegmentMoments:
    """Exact second moments of the products through each segment's end, and three ways to look at their growth.

    Parameters
    ----------
    law : ExactLaw       of the sampler, `enumerate_law(env, target, schedule)`
    env, target, schedule

    Raises
    ------
    InputError   all weights are 0 (no response of the sampler is possible under the target)
    Gives        second = cumulative product of factor <= that of largest (S9, S10)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, cuts, enumerate_law
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.1, 0.9]]))
    >>> mu = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]))
    >>> tree, schedule = PrefixTree(2, 2, rewards=[0.0] * 4), PrefixSchedule((mu, mu), cuts((1,)))
    >>> found = segment_moments(enumerate_law(tree, pi, schedule), tree, pi, schedule)
    >>> [round(float(x), 2) for x in (found.second[-1], found.average.prod(), found.largest.prod())]
    [13.16, 7.47, 13.3]
    """
    d2 = start_d2(law, env, target, schedule)
    log_weight = segment_end_log_ratios(law.batch, d2.shape[1]).double()
    before = torch.cat([torch.zeros_like(log_weight[:, :1]), log_weight[:, :-1]], 1)
    return SegmentMoments(
        second=law.expect((2 * log_weight).exp()),
        factor=tilted_mean(d2, law.log_prob, before),
        largest=d2.amax(0),
        average=law.expect(d2),
    )
