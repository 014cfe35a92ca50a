"""Whole next-token laws for a batch whose policies are at hand: what an engine would have had to record.

Rules that test a token against its alternatives (`sis`, `obrs`) and estimators that sum over the vocabulary
(`estimators.score_centering`) read them from the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import NextTokenLaws, SegmentedBatch
from testbed.core.batch_checks import first_index
from testbed.core.errors import InputError, TooLarge
from testbed.policies.base import Policy
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule

MOST_PROBABILITIES = 2**26


def with_next_token_laws(
    batch: SegmentedBatch,
    target: Policy,
    behaviors: Policy | PrefixSchedule | ExogenousSchedule | Sequence[Policy],
    tolerance: float = 1e-6,
) -> SegmentedBatch:
    """Attach both policies' laws over the whole vocabulary at every position of a batch.

    Parameters
    ----------
    batch : SegmentedBatch         an enumerated law's, or a rollout's
    target : Policy                the policy of `logp_target`
    behaviors : Policy, schedule, or one policy per segment label   who drew the tokens
    tolerance : float              nats by which a recorded log-prob may differ from its entry in the law

    Returns
    -------
    SegmentedBatch   with `next_token`: ids 0 .. V-1 at every real position, nothing remaining; float64

    Raises
    ------
    InputError   a segment without a policy, or an exogenous schedule whose branches use different ones; policies that do
                 not give the drawn tokens the recorded log-probs
    TooLarge     more than 2^26 probabilities

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]])) for p in (0.3, 0.6))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, mu)
    >>> with_next_token_laws(law.batch, pi, mu).next_token.logp_target[0, 0].exp()
    tensor([0.3000, 0.7000], dtype=torch.float64)
    """
    drawers = _per_segment(behaviors)
    size = batch.mask.numel() * target.vocab_size
    if size > MOST_PROBABILITIES:
        raise TooLarge(
            f"whole laws can be attached to batches of up to {MOST_PROBABILITIES:,} probabilities",
            found=f"{tuple(batch.mask.shape)} positions of {target.vocab_size} tokens",
            hint="select rows",
        )
    if batch.n_segments > len(drawers):
        raise InputError(
            "`behaviors` needs one policy per segment", found=f"{len(drawers)} for {batch.n_segments} segments"
        )
    with torch.no_grad():
        logp_target = _laws(target, batch)
        logp_behavior = torch.zeros_like(logp_target)
        for label, policy in enumerate(drawers):
            mine = (batch.segment == label) & batch.mask
            if bool(mine.any()):
                logp_behavior = torch.where(mine[..., None], _laws(policy, batch), logp_behavior)
    for name, laws in (("target", logp_target), ("behavior", logp_behavior)):
        _require_recorded(batch, name, laws, tolerance)
    none = torch.zeros(batch.mask.shape, dtype=torch.float64)
    return batch.replaced(
        next_token=NextTokenLaws(
            ids=torch.arange(target.vocab_size).expand(logp_target.shape),
            logp_target=logp_target,
            logp_behavior=logp_behavior,
            remaining_target=none,
            remaining_behavior=none,
        )
    )


def _per_segment(behaviors: Policy | PrefixSchedule | ExogenousSchedule | Sequence[Policy]) -> tuple[Policy, ...]:
    if isinstance(behaviors, Policy):
        return (behaviors,)
    if isinstance(behaviors, PrefixSchedule | ExogenousSchedule):
        used = [realized.policies for _, realized in behaviors.branches()]
        if any(policies != used[0] for policies in used):
            raise InputError(
                "the branches of `behaviors` must number the same policies alike",
                found=f"{len(used)} branches that do not",
                hint="attach the laws branch by branch",
            )
        return used[0]
    return tuple(behaviors)


def _laws(policy: Policy, batch: SegmentedBatch) -> Float[Tensor, "B T V"]:
    return policy.at(batch.group).log_probs(batch.tokens).double()


def _require_recorded(batch: SegmentedBatch, name: str, laws: Float[Tensor, "B T V"], tolerance: float) -> None:
    drawn = laws.gather(-1, batch.tokens[..., None])[..., 0]
    recorded = getattr(batch, f"logp_{name}").detach().double()
    gap = (drawn - recorded).abs()  # NaN, and so within tolerance, where both are -inf
    wrong = batch.mask & (gap > tolerance)
    if bool(wrong.any()):
        raise InputError(
            f"the law of the {name} must give drawn tokens the recorded `logp_{name}`",
            found=f"{int(wrong.sum())} apart, by up to {float(gap[wrong].max()):.3g} nats, first at {first_index(wrong)}",
            hint="another policy, or another numerical setting, wrote this batch",
        )
