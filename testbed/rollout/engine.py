"""The rollout engine: draws responses token by token under a schedule and records what each behavior assigned.

All randomness, the schedule's own noise included, goes through one Chooser, so that the same code samples (RandomChooser), has
its output law enumerated (ReplayChooser), and is compared path by path with other engines (KeyedChooser). The behaviors are
asked through their decoders, so that a policy with a key-value cache is fed each token once; a response that ends leaves
the batch.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, Schedule, one
from testbed.rollout.writers import Writers

BRANCH = -1  # the position of the draw of a schedule's branch in the chooser's key; tokens have 0, 1, ...


def rollout(
    env: Environment,
    schedule: Schedule | Policy,
    n: int,
    chooser: Chooser,
    target: Policy | None = None,
    group: Int64[Tensor, " n"] | None = None,
    max_tokens: Int64[Tensor, " n"] | None = None,
) -> SegmentedBatch:
    """Draw n responses and record segments, behavior log-probs, target log-probs and rewards.

    Parameters
    ----------
    env : Environment        horizon, end token and reward
    schedule : a Policy, PrefixSchedule or ExogenousSchedule (its branch is drawn per response, before the first token)
    n : int                  responses, >= 1
    chooser : Chooser        the only source of randomness; keys are (response, position), position -1 for the branch
    target : Policy | None   whose log-probs are recorded as `logp_target`; None records the behavior's own
    group : Int64[Tensor, " n"] | None        prompt of each response (None: prompt 0)
    max_tokens : Int64[Tensor, " n"] | None   most tokens of each response, >= 0; a response cut by it is padded and
                             rewarded as it stands; None or more than the horizon: the horizon

    Returns
    -------
    SegmentedBatch   [n, T]; positions after `eos` or beyond `max_tokens` are padding

    Raises
    ------
    InputError   n < 1, a seed in place of a chooser, a `group` or `max_tokens` of another length or negative, mismatched
                 vocabularies, or a schedule that breaks its rules

    Assumes      prompts are known to the policies (`Policy.at`); the environment only rewards
    Gives        the law that `testbed.exact.law.enumerate_law` enumerates, row by row
    Numerics     a policy that takes over at a boundary has seen nothing of the response and is fed all of it

    Examples
    --------
    >>> from testbed import PrefixTree, RandomChooser, TabularPolicy
    >>> mu = TabularPolicy(torch.zeros(3, 2))
    >>> batch = rollout(PrefixTree(2, 2, rewards=[0.0, 1.0, 2.0, 3.0]), mu, 5, RandomChooser(0))
    >>> batch.logp_behavior.exp().unique().tolist(), batch.batch_size
    ([0.5], 5)
    """
    if n < 1:
        raise InputError("`n` must be >= 1", found=n)
    if not isinstance(chooser, Chooser):
        found, hint = f"{chooser!r} ({type(chooser).__name__})", "wrap a seed: RandomChooser(seed)"
        raise InputError("`chooser` must be an object that draws, with a method `choose`", found=found, hint=hint)
    if isinstance(schedule, Policy):
        schedule = PrefixSchedule((schedule,), one())
    if schedule.vocab_size != env.vocab_size:
        raise InputError(
            "behaviors and environment must share one vocabulary", found=f"{schedule.vocab_size} and {env.vocab_size}"
        )
    group = per_response("group", group, n, 0)
    most = per_response("max_tokens", max_tokens, n, env.horizon)
    rows = torch.arange(n)
    writers = Writers(schedule, _branches(schedule, rows, chooser), group)
    tokens = torch.zeros(n, env.horizon, dtype=torch.int64)
    mask = torch.zeros(n, env.horizon, dtype=torch.bool)
    segment = torch.full((n, env.horizon), -1, dtype=torch.int64)
    logp_behavior = torch.zeros(n, env.horizon, dtype=torch.float64)
    rows = rows[most > 0]
    for t in range(env.horizon):
        if rows.numel() == 0:
            break
        live = slice(None) if rows.numel() == n else rows
        label, log_probs = writers.next_laws(rows, tokens[live, :t])
        drawn = chooser.choose(log_probs.exp(), torch.stack([rows, torch.full_like(rows, t)], 1))
        tokens[live, t] = drawn
        mask[live, t] = True
        segment[live, t] = label
        logp_behavior[live, t] = log_probs.gather(1, drawn[:, None])[:, 0]
        goes_on = most[live] > t + 1
        if env.eos is not None:
            goes_on &= drawn != env.eos
        rows = rows[goes_on]
    logp_target = logp_behavior
    if target is not None:
        with torch.no_grad():
            score = target.at(group).score(tokens).to(logp_behavior)
        logp_target = torch.where(mask, score, torch.zeros((), dtype=torch.float64))
    return SegmentedBatch(
        tokens=tokens,
        mask=mask,
        segment=segment,
        logp_target=logp_target,
        logp_behavior=logp_behavior,
        reward=env.reward(tokens, mask, group),
        group=group,
        token_reward=env.token_reward(tokens, mask, group),
    )


def per_response(name: str, value: Tensor | None, n: int, default: int) -> Int64[Tensor, " n"]:
    """Return one whole number >= 0 for each response, `default` where none is given."""
    if value is None:
        return torch.full((n,), default, dtype=torch.int64)
    require_shape(name, value, (n,))
    if int(value.min()) < 0:
        raise InputError(f"`{name}` must be >= 0", found=int(value.min()))
    return value


def _branches(schedule: Schedule, rows: Tensor, chooser: Chooser) -> Int64[Tensor, " n"]:
    """Realization of the schedule's noise for each response, drawn only if there is a choice."""
    probs = [prob for prob, _ in schedule.branches()]
    if len(probs) == 1:
        return torch.zeros_like(rows)
    prior = torch.tensor(probs, dtype=torch.float64).expand(len(rows), -1)
    return chooser.choose(prior, torch.stack([rows, torch.full_like(rows, BRANCH)], 1))
