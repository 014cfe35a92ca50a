"""Which slots a policy gets."""

from __future__ import annotations

from testbed.core.errors import InputError
from testbed.policies.base import Policy
from testbed.policies.perturbed import Perturbed
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.slot_decoder import SlotDecoder
from testbed.policies.truncated import Truncated
from testbed.rollout.clockwork.slots import PlainSlots, Slots
from testbed.rollout.clockwork.snapshots import innermost
from testbed.rollout.clockwork.wrapped_slots import FilteredSlots, NoisySlots


def open_slots(policy: Policy, slots: int, room: int) -> Slots:
    """Open slots for responses of at most `room` tokens: with a cache for a transformer, without for all others.

    Examples
    --------
    >>> import torch
    >>> from testbed.policies.tabular import TabularPolicy
    >>> held = open_slots(Truncated(TabularPolicy(torch.zeros(1, 2)), top_k=1), 2, 1)
    >>> type(held).__name__, type(held.inner).__name__
    ('FilteredSlots', 'PlainSlots')
    """
    if isinstance(policy, Truncated):
        return FilteredSlots(policy, open_slots(policy.policy, slots, room))
    if isinstance(policy, Perturbed):
        return NoisySlots(policy, open_slots(policy.policy, slots, room))
    if isinstance(policy, TransformerPolicy):
        return SlotDecoder(policy, slots, room)
    return PlainSlots(policy, slots, room)


def require_cache(policy: Policy) -> None:
    """Raise InputError if the policy keeps no keys and values that could become stale."""
    inner = innermost(policy)
    if not (isinstance(inner, TransformerPolicy) and inner.numerics.cached):
        raise InputError(
            "push='stale_cache' needs a policy that keeps keys and values",
            found=type(inner).__name__,
            hint="use a TransformerPolicy with a cache, or push='recompute'",
        )
