"""The walk of a verifier that compares target draws with a tree: at each node draw from the target, follow a child, else stop.

The drawn token is emitted whether it was a child or not, so every position is drawn exactly once and from the target's law:
the tree decides how many positions one pass settles, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verify.laws import certain_unless


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a verifier made of a round: per row a run of `accepted` drafts and one token more.

    Parameters
    ----------
    tokens : Int64[Tensor, "b D+1"]     the run; what lies beyond `accepted` + 1 tokens means nothing
    path : Int64[Tensor, "b D"]         place in the pass (0 = root, j + 1 = place j of the tree) of each accepted draft
    accepted : Int64[Tensor, " b"]      0..D
    """

    tokens: Int64[Tensor, "b M"]
    path: Int64[Tensor, "b D"]
    accepted: Int64[Tensor, " b"]

    def places(self) -> Int64[Tensor, "b M"]:
        """Place in the pass whose law speaks of each token of the run."""
        return torch.cat([torch.zeros_like(self.accepted)[:, None], self.path], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Where a verifier's draws come from and where they end.

    Parameters
    ----------
    chooser : Chooser
    rows, position : Int64[Tensor, " b"]   number of each response, and of its first token to be drawn: the keys
    remaining : Int64[Tensor, " b"]        tokens that the response may still have, >= 1
    eos : int | None                       token that ends a response
    """

    chooser: Chooser
    rows: Int64[Tensor, " b"]
    position: Int64[Tensor, " b"]
    remaining: Int64[Tensor, " b"]
    eos: int | None

    def token(self, law: Float[Tensor, "b V"], level: int, live: Bool[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """Token `level` places on; a row that is not live (all are at level 0) gets token 0 without a choice."""
        key = torch.stack([self.rows, self.position + level], 1)
        return self.chooser.choose(certain_unless(live, law) if level else law, key)

    def goes_on(self, token: Int64[Tensor, " b"], level: int) -> Bool[Tensor, " b"]:
        """Whether a response goes on after this token."""
        more = self.remaining > level + 1
        return more if self.eos is None else more & (token != self.eos)

    def emitted(self, run: Run) -> Bool[Tensor, "b M"]:
        """Tokens of a run that the response keeps: none after its end token, none beyond its cap."""
        step = torch.arange(run.tokens.shape[1], device=run.tokens.device)
        inside = (step <= run.accepted[:, None]) & (step < self.remaining[:, None])
        if self.eos is None:
            return inside
        ended = ((run.tokens == self.eos) & inside).long()
        return inside & (ended.cumsum(1) - ended == 0)


def children_holding(tree: DraftTree, at: Int64[Tensor, " b"], token: Int64[Tensor, " b"]) -> Bool[Tensor, "b N"]:
    """Children of the place where each row stands (0 = root, j + 1 = place j) that hold a token; the first one counts."""
    return (tree.parent == at[:, None] - 1) & (tree.tokens == token[:, None])


def membership_walk(tree: DraftTree, log_probs: Float[Tensor, "b N V"], draws: Draws) -> Run:
    """Follow the target's own draws through the tree.

    Parameters
    ----------
    tree : DraftTree
    log_probs : Float[Tensor, "b N V"]   the target's laws at root and places, the root's first
    draws : Draws                        one draw per emitted token, keyed by (response, position)

    Gives      the autoregressive law for every tree that does not depend on draws yet to come, and with noise keyed by
               position the autoregressive tokens themselves, for every tree; accepted drafts: in expectation the sum of
               the target's path probabilities over the tree, the most that an exact verifier can have (V2, V3, V5)

    Examples
    --------
    >>> from testbed import RandomChooser
    >>> tree = DraftTree(tokens=torch.tensor([[1]]), parent=torch.tensor([[-1]]), depth=torch.tensor([[1]]),
    ...     log_weight=torch.zeros(1, 1), levels=1)
    >>> laws = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log()  # 1 for certain, then 0
    >>> zero, ten = torch.tensor([0]), torch.tensor([10])
    >>> draws = Draws(chooser=RandomChooser(0), rows=zero, position=zero, remaining=ten, eos=None)
    >>> run = membership_walk(tree, laws, draws)
    >>> run.tokens.tolist(), run.accepted.tolist()
    ([[1, 0]], [1])
    """
    batch = len(draws.rows)
    row = torch.arange(batch, device=log_probs.device)
    at = torch.zeros_like(row)
    live, accepted = torch.ones_like(at, dtype=torch.bool), torch.zeros_like(at)
    tokens, path = [], []
    for level in range(tree.levels + 1):
        law = log_probs[row, at].exp()
        drawn = draws.token(law, level, live)
        tokens.append(drawn)
        if level == tree.levels:
            break
        child = children_holding(tree, at, drawn)
        live = live & child.any(1) & draws.goes_on(drawn, level)
        at = torch.where(live, child.long().argmax(1) + 1, at)
        path.append(at)
        accepted = accepted + live
    empty = torch.zeros(batch, 0, dtype=torch.int64, device=log_probs.device)
    return Run(tokens=torch.stack(tokens, 1), path=torch.stack(path, 1) if path else empty, accepted=accepted)
