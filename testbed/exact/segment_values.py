"""Values of continuing with the target to the end of a token's segment and with the behaviors from there on.

A weight that stops at the end of a segment corrects the tokens up to there and no others: seen from token t, the rest of
its segment has the target's law and what follows has the behaviors' (S4). With one segment this is the target's own
value; with one token per segment it is the schedule's.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.environments.base import Environment
from testbed.exact.values import action_values
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule


def target_through(target: Policy, schedule: PrefixSchedule, segment: int) -> PrefixSchedule:
    """Build the schedule that lets the target write every segment up to and including `segment`.

    Boundaries stay where the given schedule puts them; its behaviors write the later segments.

    Examples
    --------
    >>> from testbed import TabularPolicy, cuts
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 3).double()) for p in (0.5, 0.9))
    >>> target_through(pi, PrefixSchedule((mu, mu), cuts((1,))), 0).log_prob_table(2, 2).exp()[:, 0]
    tensor([0.5000, 0.9000, 0.9000], dtype=torch.float64)
    """

    def segment_of(prefix: tuple[int, ...]) -> int:
        label = schedule.segment(prefix)
        return 0 if label <= segment else label + 1

    return PrefixSchedule((target, *schedule.policies), segment_of)


def segment_end_action_values(env: Environment, target: Policy, schedule: PrefixSchedule) -> Float[Tensor, "N V"]:
    """Expected return of token y after h, then the target to the end of the segment of y, then the schedule.

    Q(h, y) = E[R | h, y; target while S(h') = S(h), behaviors mu_S(h') afterwards]

    Parameters
    ----------
    env : Environment          up to 2^20 responses
    target : Policy
    schedule : PrefixSchedule  a realized schedule: for exogenous noise ask once per branch

    Returns
    -------
    Float64[Tensor, "N V"]     whole return, in node order; 0 after an ended response

    Raises
    ------
    TooLarge, InputError       as `action_values`

    Assumes    nothing about support: the values are those of the two-part law itself
    Gives      E_mu[sum_t W_(S_t) s_t R] = E_pi[sum_t s_t Q(h_t, y_t)], W_(k) the product through the end of segment k (S4)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, cuts
    >>> tree = PrefixTree(2, 2, rewards=[0.0, 1.0, 0.0, 1.0])
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 3).double()) for p in (0.5, 0.9))
    >>> segment_end_action_values(tree, pi, PrefixSchedule((mu, mu), cuts((1,))))[0]
    tensor([0.1000, 0.1000], dtype=torch.float64)
    >>> segment_end_action_values(tree, pi, PrefixSchedule((mu, mu), cuts((5,))))[0]
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    segment = schedule.segment_table(env.vocab_size, env.horizon)
    values = torch.zeros(segment.shape[0], env.vocab_size, dtype=torch.float64)
    for k in segment.unique().tolist():
        here = segment == k
        values[here] = action_values(env, target_through(target, schedule, k))[here]
    return values
