"""A sampler that regenerates the end of a response, with the decision to do so as an argument: the post-hoc boundary of S6.

It is a program whose only randomness is a Chooser, so that its law is enumerated choice by choice and never derived by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.exact.output_law import output_law
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, one
from theory.worlds import World

Prefix = tuple[int, ...]
Output = tuple[Prefix, bool]  # what is trained on, and whether its suffix was regenerated
Decision = Callable[[World, Prefix, Prefix, Chooser], bool]  # (world, draft, kept prefix, chooser) -> regenerate?


def drawn(w: World, policy: Policy, start: Prefix, chooser: Chooser) -> Prefix:
    """Continue a prefix to its end with one policy."""
    tokens = list(start)
    while len(tokens) < w.env.horizon and not (tokens and tokens[-1] == w.env.eos):
        law = policy.next_log_probs(torch.tensor([tokens], dtype=torch.int64)).exp()
        tokens += chooser.choose(law).tolist()
    return tuple(tokens)


def failed(w: World, y: Prefix) -> bool:
    """Whether a finished response earns nothing."""
    row = torch.tensor([[*y, *[0] * (w.env.horizon - len(y))]])
    mask = torch.arange(w.env.horizon)[None] < len(y)
    return float(w.env.reward(row, mask, torch.zeros(1, dtype=torch.int64))) == 0


def kept_length(w: World, y: Prefix) -> int:
    """Tokens before the boundary, where the schedule of the world changes from segment 0 to 1; all if it never does."""
    (_, schedule), *_ = w.schedule.branches()
    return next((t for t in range(len(y)) if schedule.segment(y[:t]) == 1), len(y))


def finished_draft_failed(w: World, draft: Prefix, kept: Prefix, chooser: Chooser) -> bool:
    """Post-hoc decision: look at the finished draft itself."""
    return failed(w, draft)


def another_draft_failed(w: World, draft: Prefix, kept: Prefix, chooser: Chooser) -> bool:
    """Repaired decision: judge the kept prefix by a second draft from it, which is thrown away either way."""
    return failed(w, drawn(w, w.behaviors[0], kept, chooser))


def regenerating(w: World, decide: Decision, chooser: Chooser) -> Output:
    """Draft with the first behavior; if so decided, regenerate what follows the kept prefix with the second."""
    draft = drawn(w, w.behaviors[0], (), chooser)
    kept = draft[: kept_length(w, draft)]
    if decide(w, draft, kept, chooser):
        return drawn(w, w.behaviors[1], kept, chooser), True
    return draft, False


def regenerated_law(w: World, decide: Decision) -> ExactLaw:
    """Law of what the sampler returns, every token with the log-prob its own behavior recorded.

    `branch` is 1 where the suffix was regenerated.

    Examples
    --------
    >>> from testbed import cuts
    >>> from theory.worlds import world
    >>> law = regenerated_law(world("example", 2, 2, cuts((1,)), rewards=[1.0, 0.0, 0.0, 1.0]), finished_draft_failed)
    >>> bool((law.batch.reward[law.branch == 0] == 1).all()), bool((law.batch.reward[law.branch == 1] == 0).any())
    (True, True)
    """
    probs = output_law(lambda chooser: regenerating(w, decide, chooser))
    sources = [
        (flag, enumerate_law(w.env, w.target, s).batch)
        for flag, s in ((False, PrefixSchedule(w.behaviors, one())), (True, w.schedule))
    ]
    batches, log_probs, branches = [], [], []
    for flag, batch in sources:
        rows = [tuple(y[:n]) for y, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
        held = torch.tensor([(y, flag) in probs for y in rows])
        kept = [probs[y, flag] for y in rows if (y, flag) in probs]
        batches.append(batch.select(held))
        log_probs.append(torch.tensor(kept, dtype=torch.float64).log())
        branches.append(torch.full((len(kept),), int(flag)))
    return ExactLaw(
        batch=SegmentedBatch.concatenated(batches), log_prob=torch.cat(log_probs), branch=torch.cat(branches)
    )
