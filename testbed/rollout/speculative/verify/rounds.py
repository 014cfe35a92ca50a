"""Multi-round verification: try the children of a node one after the other, then draw from what they left over."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.protocol import Proposal, Verified, flip
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
    live, last = walk.every, walk.node.clone()  # the place tried last: later siblings and all descendants come after it
    p = proposal.target_law(live, walk.node)
    q = proposal.drafter_law(live, walk.node) if drawn else torch.zeros_like(p)
    while live.numel():
        child = proposal.next_child(live, walk.node[live], last[live])
        live, child = live[child >= 0], child[child >= 0]
        last[live] = child
        token = proposal.tokens[live, child]
        taken = flip(chooser, accept(p[live], q[live], token), proposal.coin_key(live, child))
        stay, go = live[~taken], live[taken]
        p[stay], q[stay] = rejected(p[stay], q[stay], token[~taken])
        walk.move(go, to=child[taken])
        p[go] = proposal.target_law(go, walk.node[go])
        if drawn:
            q[go] = proposal.drafter_law(go, walk.node[go])
    return walk.finish(chooser, p)
