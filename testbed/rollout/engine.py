"""The rollout engine: draws responses token by token under a schedule and records what each behavior assigned.

All randomness, the schedule's own noise included, goes through one Chooser, so that the same code samples (RandomChooser), has
its output law enumerated (ReplayChooser), and is compared path by path with other engines (KeyedChooser).
"""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, Schedule, one


def rollout(
    env: Environment,
    schedule: Schedule | Policy,
    n: int,
    chooser: Chooser,
    target: Policy | None = None,
    group: Tensor | None = None,
) -> SegmentedBatch:
    """Draw n responses and record segments, behavior log-probs, target log-probs and rewards.

    Parameters
    ----------
    env : Environment        horizon, end token and reward
    schedule : a Policy, PrefixSchedule or ExogenousSchedule (its branch is drawn per response, before the first token)
    n : int                  responses, >= 1
    chooser : Chooser        the only source of randomness; keys are (response, position), position -1 for the branch
    target : Policy | None   whose log-probs are recorded as `logp_target`; None scores the composite behavior itself
    group : Int64[Tensor, " n"] | None   prompt ids (None: one prompt)

    Returns
    -------
    SegmentedBatch   [n, T]; positions after `eos` are padding

    Raises
    ------
    InputError   n < 1, mismatched vocabularies, or a schedule that breaks its rules

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
    if isinstance(schedule, Policy):
        schedule = PrefixSchedule((schedule,), one())
    if schedule.vocab_size != env.vocab_size:
        raise InputError(
            "behaviors and environment must share one vocabulary", found=f"{schedule.vocab_size} and {env.vocab_size}"
        )
    branches = schedule.branches()
    rows = torch.arange(n)
    branch = torch.zeros(n, dtype=torch.int64)
    if len(branches) > 1:
        prior = torch.tensor([p for p, _ in branches], dtype=torch.float64).expand(n, -1)
        branch = chooser.choose(prior, torch.stack([rows, torch.full_like(rows, -1)], 1))
    tokens = torch.zeros(n, env.horizon, dtype=torch.int64)
    mask = torch.zeros(n, env.horizon, dtype=torch.bool)
    segment = torch.full((n, env.horizon), -1, dtype=torch.int64)
    logp_behavior = torch.zeros(n, env.horizon, dtype=torch.float64)
    live = torch.ones(n, dtype=torch.bool)
    for t in range(env.horizon):
        active = rows[live]
        if active.numel() == 0:
            break
        label, log_probs = _next_laws(branches, branch[active], tokens[active, :t])
        drawn = chooser.choose(log_probs.exp(), torch.stack([active, torch.full_like(active, t)], 1))
        tokens[active, t] = drawn
        mask[active, t] = True
        segment[active, t] = label
        logp_behavior[active, t] = log_probs.gather(1, drawn[:, None])[:, 0]
        if env.eos is not None:
            live[active] = drawn != env.eos
    group = torch.zeros(n, dtype=torch.int64) if group is None else group
    logp_target = logp_behavior
    if target is not None:
        with torch.no_grad():
            logp_target = torch.where(mask, target.score(tokens).double(), torch.zeros((), dtype=torch.float64))
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


def _next_laws(branches: list[tuple[float, PrefixSchedule]], branch: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """Segment labels [b] and log-probabilities [b, V] of the next token of each live row."""
    label = torch.empty(prefix.shape[0], dtype=torch.int64)
    log_probs = torch.empty(prefix.shape[0], branches[0][1].vocab_size, dtype=torch.float64)
    for number, (_, realized) in enumerate(branches):
        mine = torch.nonzero(branch == number)[:, 0] if len(branches) > 1 else torch.arange(len(label))
        if mine.numel() == 0:
            continue
        label[mine] = labels = realized.segments(prefix[mine])
        for k in range(int(labels.min()), int(labels.max()) + 1):
            here = mine[labels == k]
            if here.numel():
                with torch.no_grad():
                    log_probs[here] = realized.policies[k].next_log_probs(prefix[here]).double()
    return label, log_probs
