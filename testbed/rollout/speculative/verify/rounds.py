"""Multi-round verification: try the children of a node one after the other, then draw from what they left over."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.walk import Walk

Acceptance = Callable[[Tensor, Tensor, Tensor], Tensor]  # (p, q, token) -> probability [b]
Rejected = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (p, q, token) -> (p, q) left over [b V]


def try_children(
    proposal: Proposal, chooser: Chooser, accept: Acceptance, rejected: Rejected, drawn: bool = True
) -> Verified:
    """Walk down a draft by trying children in the order of their places.

        at a node, with p and q its laws: for each child x, accept with probability accept(p, q, x) and go there; else
        (p, q) <- rejected(p, q, x).  No child left: draw from p and stop

    Parameters
    ----------
    proposal : Proposal
    chooser : Chooser     one coin per child that is tried, one token per row
    accept, rejected      the rule; laws are float64 [b, V], tokens [b]
    drawn : bool          whether the rule needs the drafter's law; without it q is all zeros

    Returns
    -------
    Verified
    """
    walk = Walk(proposal)
    p = proposal.target_law(walk.every, walk.node)
    q = proposal.drafter_law(walk.every, walk.node) if drawn else torch.zeros_like(p)
    for place in range(proposal.tokens.shape[1]):  # a node before its children, siblings in their order
        token = proposal.tokens[:, place].clamp(min=0)
        went, stayed = walk.offer(chooser, place, accept(p, q, token))
        left_p, left_q = rejected(p, q, token)
        here = torch.full_like(walk.node, place)
        p = updated(p, stayed, left_p, went, proposal.target_law(walk.every, here))
        if drawn:
            q = updated(q, stayed, left_q, went, proposal.drafter_law(walk.every, here))
    return walk.finish(chooser, p)


def updated(law: Tensor, stayed: Tensor, left: Tensor, went: Tensor, below: Tensor) -> Tensor:
    """Law of every row after a place was offered: what a rejection left, the law below an accepted node, or as it was."""
    return torch.where(went[:, None], below, torch.where(stayed[:, None], left, law))
