"""Traversal verification: a drawn tree from its leaves to its root, so that a child may be saved by what follows it."""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import acceptance, residual, without
from testbed.rollout.speculative.verify.protocol import ROOT, Proposal, Verified, flip
from testbed.rollout.speculative.verify.walk import Walk


def traversal(proposal: Proposal, chooser: Chooser, distinct: bool = False) -> Verified:
    """Verify a drawn tree depth first, deciding about a node after all of its descendants.

        a(root) = 1;  entering child x of a node with (a, p, q):  a(x) = min(1, a p(x) / q(x))
        a node with no children left is accepted with probability a; then draw from its p and stop
        rejected: at its parent  s = sum (a p - q)+,  p <- (a p - q)+ / s,  a <- s / (s + 1 - a)  (0/0 = 0),
        and, for siblings drawn without replacement, q <- q conditioned on not being x

    Parameters
    ----------
    proposal : Proposal   siblings drawn from q(. | parent), independently or without replacement
    chooser : Chooser     a coin per node that is decided, one token per row
    distinct : bool       whether siblings were drawn without replacement

    Returns
    -------
    Verified

    Raises
    ------
    InputError   no drafter law
    Assumes      q is the law the children were drawn from, in the order of their places; coins independent of the draft
    Gives        the target's law; a node that is entered is on the accepted path with probability a (V4); on chains the law of
                 `block`
    Numerics     float64; at most 2 N + 1 steps over all rows, memory of two [B, N + 1, V] tables
    References   arXiv 2505.12398; stated here from its abstract, the updates are our own completion

    Examples
    --------
    >>> from testbed.core.choices import RandomChooser
    >>> p = torch.tensor([0.0, 1.0]).log().expand(1, 3, 2)
    >>> proposal = Proposal(tokens=torch.tensor([[0, 1]]), parent=torch.tensor([-1, -1]), target=p,
    ...                     drafter=torch.tensor([0.5, 0.5]).log().expand(1, 3, 2))
    >>> traversal(proposal, RandomChooser(0)).path
    tensor([[ 1, -1]])
    """
    walk = Walk(proposal)
    p, q = proposal.tables()
    a = torch.ones_like(p[:, :, 0])
    node, last = walk.node.clone(), walk.node.clone()
    live = walk.every
    while live.numel():
        at = node[live]
        child = proposal.next_child(live, at, last[live])
        down = child >= 0
        row, x, up = live[down], child[down], at[down] + 1
        token = proposal.tokens[row, x]
        a[row, x + 1] = acceptance(a[row, up][:, None] * p[row, up], q[row, up], token)
        node[row], last[row] = x, x
        live, at = live[~down], at[~down]
        taken = at == ROOT
        asked, place = live[~taken], at[~taken]
        taken[~taken] = flip(chooser, a[asked, place + 1], proposal.coin_key(asked, place))
        back, x = live[~taken], at[~taken]
        up = proposal.parent[back, x] + 1
        a[back, up], p[back, up], q[back, up] = rejected(
            a[back, up], p[back, up], q[back, up], proposal.tokens[back, x], distinct
        )
        node[back], last[back] = up - 1, x
        live = torch.cat([row, back]).sort().values
    walk.move_down(walk.every, leaf=node)
    return walk.finish(chooser, p[walk.every, node + 1])


def rejected(a: Tensor, p: Tensor, q: Tensor, token: Tensor, distinct: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What a node has left when a child was rejected with all that follows it."""
    rest, mass = residual(p, q, a)
    total = mass + 1 - a
    return (
        torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0),
        rest,
        without(q, token) if distinct else q,
    )


def traversal_without_replacement(proposal: Proposal, chooser: Chooser) -> Verified:
    """Return what `traversal` settles for siblings drawn without replacement."""
    return traversal(proposal, chooser, distinct=True)
