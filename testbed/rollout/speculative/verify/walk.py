"""Bookkeeping of a walk down a draft: where each row stands, what it has accepted, what it emits.

All rows go through the same steps, one coin per place; a row to which a step means nothing flips a coin that always fails.
So a round on a draft of given shape is a given list of tensor operations, and the host waits for none of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.protocol import EMPTY, ROOT, Proposal, Verified, flip


class Walk:
    """Rows that start at the root, come to stand at a node, and end with a token of their own.

    node   [B]   place where each row stands; -1 = the root
    last   [B]   that token; -1 for as long as there is none

    Examples
    --------
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> walk = Walk(chain(torch.tensor([[1]]), target=torch.zeros(1, 2, 2).log_softmax(-1)))
    >>> walk.offer(RandomChooser(0), 0, chance=torch.tensor([1.0]))
    (tensor([True]), tensor([False]))
    >>> walk.finish(RandomChooser(0), law=torch.tensor([[0.0, 1.0]]))
    Verified(accepted=tensor([1]), tokens=tensor([[1, 1]]), path=tensor([[0]]))
    """

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.every = torch.arange(len(proposal.tokens), device=proposal.tokens.device)
        self.node, self.last = torch.full_like(self.every, ROOT), torch.full_like(self.every, EMPTY)

    def offer(
        self, chooser: Chooser, place: int, chance: Float[Tensor, " B"]
    ) -> tuple[Bool[Tensor, " B"], Bool[Tensor, " B"]]:
        """Try a place in the rows that stand at its parent: move there with this chance (which counts in no other row).

        Places are offered from the first to the last: siblings in their order, and a node before its children.

        Returns
        -------
        rows that accepted it, rows that rejected it
        """
        asked = (self.proposal.parent[:, place] == self.node) & (self.proposal.tokens[:, place] >= 0)
        taken = self._flip(chooser, torch.full_like(self.node, place), asked, chance)
        return taken, asked & ~taken

    def climb(self, chooser: Chooser, chance: Float[Tensor, "B N"], order: Int64[Tensor, "B N"] | None = None) -> None:
        """Try all places one by one, wherever they hang, and move to the first that is accepted; stay at the root if none is.

        `order` is each row's own; None: from the last place to the first, which on a chain is from its leaf to its root.
        """
        if order is None:
            order = torch.arange(chance.shape[1], device=chance.device).flip(0).expand_as(chance)
        for place in order.unbind(1):
            at = place[:, None]
            asked = (self.node == ROOT) & (self.proposal.tokens.gather(1, at)[:, 0] >= 0)
            self._flip(chooser, place, asked, chance.gather(1, at)[:, 0])

    def _flip(
        self, chooser: Chooser, place: Int64[Tensor, " B"], asked: Bool[Tensor, " B"], chance: Float[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        taken = flip(chooser, torch.where(asked, chance, 0.0), self.proposal.coin_key(self.every, place))
        self.node = torch.where(taken, place, self.node)
        return taken

    @property
    def path(self) -> Int64[Tensor, "B L"]:
        """Places from the root to where each row stands, -1 behind."""
        places = self.proposal.tokens.shape[1]
        path = self.node[:, None].repeat(1, self.proposal.longest)
        for step in range(1, path.shape[1]):
            at = path[:, step - 1]
            up = self.proposal.parent.gather(1, at.clamp(min=0)[:, None])[:, 0]
            path[:, step] = torch.where(at >= 0, up, ROOT)
        path = torch.where(path >= 0, path, places).sort(1).values  # a node stands at a later place than its parent
        return torch.where(path < places, path, EMPTY)

    @property
    def accepted(self) -> Int64[Tensor, " B"]:
        """How many nodes it is from the root to where each row stands."""
        return (self.path >= 0).sum(1)

    def finish(self, chooser: Chooser, law: Float[Tensor, "B V"]) -> Verified:
        """End every row with a draw from its law."""
        path = self.path
        self.last = chooser.choose(law, self.proposal.token_key(self.every, (path >= 0).sum(1)))
        return self._settled(path)

    def done(self) -> Verified:
        """Return what the walk settled."""
        return self._settled(self.path)

    def _settled(self, path: Int64[Tensor, "B L"]) -> Verified:
        accepted = (path >= 0).sum(1)
        drafted = torch.where(path >= 0, self.proposal.tokens.gather(1, path.clamp(min=0)), EMPTY)
        run = torch.nn.functional.pad(drafted, (0, 1), value=EMPTY).scatter(1, accepted[:, None], self.last[:, None])
        return Verified(accepted=accepted, tokens=run, path=path)
