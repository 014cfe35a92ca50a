"""Traversal verification: a drawn tree from its leaves to its root, so that a child may be saved by what follows it."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import acceptance, residual, without
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
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
    Numerics     float64; all rows at once, N steps for the chances and N coins; memory of two [B, N + 1, V] tables
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
    p, q = proposal.tables()
    a = torch.ones_like(p[:, :, 0])
    walk = Walk(proposal)
    row = walk.every
    # a child is entered, and a node decided, by rows that have rejected all before it: chances need no coins
    for place in range(proposal.tokens.shape[1]):
        up, token = proposal.above(place) + 1, proposal.tokens[:, place].clamp(min=0)
        node = a[row, up], p[row, up], q[row, up]
        a[:, place + 1] = acceptance(node[0][:, None] * node[1], node[2], token)
        a[row, up], p[row, up], q[row, up] = rejected(*node, token, distinct)
    walk.climb(chooser, a[:, 1:], leaves_first(proposal))
    return walk.finish(chooser, p[row, walk.node + 1])


def rejected(a: Tensor, p: Tensor, q: Tensor, token: Tensor, distinct: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What a node has left when a child was rejected with all that follows it."""
    rest, mass = residual(p, q, a)
    total = mass + 1 - a
    return (
        torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0),
        rest,
        without(q, token) if distinct else q,
    )


def leaves_first(proposal: Proposal) -> Int64[Tensor, "B N"]:
    """Places of each row in the order in which they are decided: a node after all its descendants, siblings as they stand.

    Examples
    --------
    >>> law = torch.zeros(1, 6, 2).log_softmax(-1)
    >>> tree = Proposal(tokens=torch.tensor([[0, 1, 0, 1, 0]]), parent=torch.tensor([-1, -1, 0, 0, 1]), target=law)
    >>> leaves_first(tree)
    tensor([[2, 3, 0, 4, 1]])
    """
    rows, places = proposal.tokens.shape
    up = torch.where(proposal.tokens >= 0, proposal.parent + 1, 0)  # 0: the root, and for empty places whatever
    size = proposal.tokens.new_ones(rows, places + 1)  # nodes of each subtree
    for place in reversed(range(places)):
        size = size.scatter_add(1, up[:, place, None], size[:, place + 1, None])
    turn = torch.zeros_like(size)  # of the next decision below a node; behind its last child, the node's own
    for place in range(places):
        at = up[:, place, None]
        turn[:, place + 1] = turn.gather(1, at)[:, 0]
        turn = turn.scatter_add(1, at, size[:, place + 1, None])
    return turn[:, 1:].argsort(1)


def traversal_without_replacement(proposal: Proposal, chooser: Chooser) -> Verified:
    """Return what `traversal` settles for siblings drawn without replacement."""
    return traversal(proposal, chooser, distinct=True)
