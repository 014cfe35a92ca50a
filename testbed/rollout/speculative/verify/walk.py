"""Bookkeeping of a walk down a draft: where each row stands, what it has accepted, what it emits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.protocol import EMPTY, ROOT, Proposal, Verified


class Walk:
    """Rows that start at the root and move from node to child.

    node       [B]   where each row stands
    accepted   [B]   how many nodes it has moved to

    Examples
    --------
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> proposal = chain(torch.tensor([[1]]), target=torch.zeros(1, 2, 2).log_softmax(-1))
    >>> walk, row = Walk(proposal), torch.tensor([0])
    >>> walk.move(row, to=torch.tensor([0]))
    >>> walk.emit(row, torch.tensor([1]))
    >>> walk.done()
    Verified(accepted=tensor([1]), tokens=tensor([[1, 1]]), path=tensor([[0]]))
    """

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        rows, places = proposal.tokens.shape
        new = proposal.tokens.new_full
        self.every = torch.arange(rows, device=proposal.tokens.device)
        self.node, self.accepted = new((rows,), ROOT), new((rows,), 0)
        self.tokens, self.path = new((rows, places + 1), EMPTY), new((rows, places), EMPTY)

    def move(self, rows: Int64[Tensor, " b"], to: Int64[Tensor, " b"]) -> None:
        """Accept a child of the node where each of these rows stands."""
        at = self.accepted[rows]
        self.tokens[rows, at] = self.proposal.tokens[rows, to]
        self.path[rows, at] = to
        self.node[rows] = to
        self.accepted[rows] = at + 1

    def move_down(self, rows: Int64[Tensor, " b"], leaf: Int64[Tensor, " b"]) -> None:
        """Accept every node from the root to `leaf` (-1: none) in each of these rows, which stand at the root."""
        depth = self.proposal.depth
        node = leaf.clone()
        length = torch.where(leaf >= 0, depth[rows, leaf.clamp(min=0)], 0) if depth.shape[1] else leaf + 1
        self.node[rows], self.accepted[rows] = leaf, length
        at = length - 1
        while bool((node >= 0).any()):
            on = node >= 0
            row, place = rows[on], node[on]
            self.tokens[row, at[on]] = self.proposal.tokens[row, place]
            self.path[row, at[on]] = place
            node[on], at = self.proposal.parent[row, place], at - 1

    def emit(self, rows: Int64[Tensor, " b"], token: Int64[Tensor, " b"]) -> None:
        """End these rows with a token that was not drafted."""
        self.tokens[rows, self.accepted[rows]] = token

    def finish(self, chooser: Chooser, law: Float[Tensor, "B V"]) -> Verified:
        """End every row with a draw from its law."""
        self.emit(self.every, chooser.choose(law, self.proposal.token_key(self.every, self.accepted)))
        return self.done()

    def done(self) -> Verified:
        """Return what the walk settled."""
        return Verified(accepted=self.accepted, tokens=self.tokens, path=self.path)
