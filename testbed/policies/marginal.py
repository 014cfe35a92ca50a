"""The law of responses when a schedule's exogenous noise is summed out: whole responses are mixed, not tokens.

After a prefix the mixture believes what the prefix says about the noise, so its next-token law is that of no branch and
not the average of theirs by the prior either (`families.mixture` is that average).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.shapes import require_shape
from testbed.policies.schedule import PrefixSchedule, Schedule


def marginal_log_probs(
    schedule: Schedule,
    tokens: Int64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
    group: Int64[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T"]:
    """Log-probability of each token under the mixture of the schedule's branches, given the tokens before it.

        mu_mix(y_t | y_<t) = sum_xi P(xi) mu_xi(y_<=t) / sum_xi P(xi) mu_xi(y_<t)

    Parameters
    ----------
    schedule : PrefixSchedule or ExogenousSchedule
    tokens : Int64[Tensor, "B T"]
    mask : Bool[Tensor, "B T"] | None   True on response tokens (None: everywhere)
    group : Int64[Tensor, " B"] | None    prompt of each row (None: prompt 0)

    Returns
    -------
    Float64[Tensor, "B T"]   nats; 0 on padding; -inf from the first token that no branch can draw; sums to
                             log mu_mix(y)

    Raises
    ------
    InputError   a mask of another shape; a schedule that breaks its rules

    Assumes    the noise is drawn once per response, with the schedule's probabilities, before the first token
    Gives      recorded as the behavior's log-probs: weights pi / mu_mix, the mean of the realized weight given the
               response, hence unbiased and of smaller second moment (S17)
    Numerics   log space; each branch scores the tokens once per policy of its schedule

    Examples
    --------
    >>> from testbed import ExogenousSchedule, PrefixSchedule, TabularPolicy, one
    >>> a, b = (TabularPolicy.from_probs(torch.tensor([p] * 3)) for p in ([0.5, 0.5], [0.9, 0.1]))
    >>> both = ExogenousSchedule([(0.5, PrefixSchedule((a,), one())), (0.5, PrefixSchedule((b,), one()))])
    >>> marginal_log_probs(both, torch.tensor([[0, 0]])).exp()  # .7, then (.5 * .25 + .5 * .81) / .7
    tensor([[0.7000, 0.7571]], dtype=torch.float64)
    """
    if mask is None:
        mask = torch.ones_like(tokens, dtype=torch.bool)
    require_shape("mask", mask, tuple(tokens.shape))
    group = torch.zeros(tokens.shape[0], dtype=torch.int64) if group is None else group
    totals = torch.stack(
        [_running(branch, tokens, mask, group) + math.log(prob) for prob, branch in schedule.branches()]
    )
    through = torch.logsumexp(totals, 0)
    before = torch.cat([torch.zeros_like(through[:, :1]), through[:, :-1]], 1)
    possible = torch.isfinite(through)
    step = torch.where(possible, through - torch.where(possible, before, 0.0), float("-inf"))
    return torch.where(mask, step.clamp(max=0), 0.0)


def _running(schedule: PrefixSchedule, tokens: Tensor, mask: Tensor, group: Tensor) -> Float[Tensor, "B T"]:
    """Log-probability of the tokens through each position under one realized schedule."""
    with torch.no_grad():
        scores = torch.stack([policy.at(group).score(tokens).double() for policy in schedule.policies])
    label = torch.stack([schedule.segments(tokens[:, :t]) for t in range(tokens.shape[1])], 1)
    return torch.where(mask, scores.gather(0, label[None])[0], 0.0).cumsum(1)
