"""Drafters: where the candidates of a round come from. What they propose decides how fast a response grows, never its law.

A drafter sees what the target has shown it so far: the tokens, and the stream that the last token was drawn from. It is told
after each round what the target's pass said.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.numerics import Numerics
from testbed.rollout.speculative.heads import FutureHeads
from testbed.rollout.speculative.tree import EMPTY, DraftTree, RankPaths, largest

if TYPE_CHECKING:
    from testbed.rollout.speculative.rounds import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a rollout began: n responses, and what the target's pass over their prompts showed. One object per rollout.

    Parameters
    ----------
    rows : Int64[Tensor, " n"]        their numbers, ascending
    context : Int64[Tensor, "n P"]    start id and prompt; what lies beyond `known` means nothing
    known : Int64[Tensor, " n"]       tokens of the context
    states : Float[Tensor, "n P d"]   the stream at each of them
    """

    rows: Int64[Tensor, " n"]
    context: Int64[Tensor, "n P"]
    known: Int64[Tensor, " n"]
    states: Float[Tensor, "n P d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Where b responses stand before a round.

    Parameters
    ----------
    rows : Int64[Tensor, " b"]        their numbers
    context : Int64[Tensor, "b S"]    start id, prompt and response so far; what lies beyond `known` means nothing
    known : Int64[Tensor, " b"]       tokens of the context, the last of which is the root of the round's tree
    position : Int64[Tensor, " b"]    of the first token to be drawn, counted in the response
    state : Float[Tensor, "b d"]      stream that the root was drawn from
    weights, numerics                 of the target
    opening : Opening                 how the rollout began, the same object in all its rounds
    longest : int                     no row knows more tokens (a bound that needs no look at the device)
    """

    rows: Int64[Tensor, " b"]
    context: Int64[Tensor, "b S"]
    known: Int64[Tensor, " b"]
    position: Int64[Tensor, " b"]
    state: Float[Tensor, "b d"]
    weights: Mapping[str, Tensor]
    opening: Opening
    longest: int
    numerics: Numerics = field(default_factory=Numerics)


class Drafter(ABC):
    """Proposes trees of candidates."""

    @abstractmethod
    def draft(self, frontier: Frontier, nodes: int) -> DraftTree:
        """Tree of at most `nodes` candidates for each row, `nodes` >= 1."""

    def observe(self, finished: Round) -> None:  # noqa: B027 (most drafters have nothing to note)
        """Take note of what a round showed (nothing, by default)."""


class LawDrafter(Drafter):
    """A drafter that has a law for each depth, from which candidates are ranked, or sampled by a verifier that asks for it."""

    fan_out: tuple[int, ...]  # children per node at each depth, of trees that are drawn

    @abstractmethod
    def log_laws(self, frontier: Frontier) -> Float[Tensor, "b K V"]:
        """Log-probabilities of the token at depth 1 .. K, whatever stands in between."""


class HeadDrafter(LawDrafter):
    """Future-token heads; the tree is the largest path weights, or the first of a fixed order.

    Parameters
    ----------
    heads : FutureHeads
    fan_out : tuple of int           candidates considered at each depth, at most one depth per head
    layout : RankPaths | None        fixed paths: the first `nodes` of them, in their order; None: those of largest weight

    Raises
    ------
    InputError   more depths than heads

    Examples
    --------
    >>> from testbed.policies.transformer import TransformerConfig
    >>> heads = FutureHeads(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), 2)
    >>> HeadDrafter(heads, (3, 2)).paths.ranks()[3:6]
    [(0, 0), (0, 1), (1, 0)]
    """

    def __init__(
        self, heads: FutureHeads, fan_out: tuple[int, ...] = (4, 3, 2), layout: RankPaths | None = None
    ) -> None:
        self.heads, self.fan_out, self.fixed = heads, fan_out, layout is not None
        self.paths = RankPaths.product(fan_out) if layout is None else layout
        if self.paths.levels > heads.count:
            raise InputError("each depth needs a head", found=f"{self.paths.levels} depths and {heads.count} heads")

    def log_laws(self, frontier: Frontier) -> Float[Tensor, "b K V"]:
        """Laws of the heads."""
        with torch.no_grad():
            return self.heads.log_laws(frontier.state, frontier.weights, frontier.numerics)

    def draft(self, frontier: Frontier, nodes: int) -> DraftTree:
        """Return the largest path weights, or the leading paths of the layout."""
        tree = self.paths.drafted(self.log_laws(frontier))
        return first(tree, nodes) if self.fixed else largest(tree, nodes)


class PromptLookup(Drafter):
    """The continuation of the latest earlier occurrence of the response's last tokens: one chain, or nothing.

    Parameters
    ----------
    longest : int       most tokens proposed
    match : int         tokens that must agree; tried from this number down to 1
    repeats : float     in (0, 1], assumed probability that one more token agrees: the weights of the chain

    Raises
    ------
    InputError   numbers out of range

    Examples
    --------
    >>> context, known = torch.tensor([[9, 4, 5, 6, 4, 5], [1, 2, 3, 0, 0, 0]]), torch.tensor([6, 3])
    >>> tree = PromptLookup(longest=3).continuations(context, known, 3)
    >>> tree.tokens.tolist(), tree.parent.tolist()
    ([[6, 4, 5], [-1, -1, -1]], [[-1, 0, 1], [-1, 0, 1]])
    """

    def __init__(self, longest: int = 3, match: int = 2, repeats: float = 0.5) -> None:
        if longest < 1 or match < 1 or not 0 < repeats <= 1:
            found = f"longest={longest}, match={match}, repeats={repeats}"
            raise InputError("`longest` and `match` must be >= 1, `repeats` in (0, 1]", found=found)
        self.longest, self.match, self.repeats = longest, match, repeats

    def draft(self, frontier: Frontier, nodes: int) -> DraftTree:
        """Look the last tokens up in prompt and response."""
        return self.continuations(frontier.context, frontier.known, nodes)

    def continuations(self, context: Int64[Tensor, "b S"], known: Int64[Tensor, " b"], nodes: int) -> DraftTree:
        """Chain of the tokens that followed the latest match in each context."""
        batch, size = context.shape
        count = min(nodes, self.longest)
        place = torch.arange(size, device=context.device)
        start = torch.full((batch,), -1, dtype=torch.int64, device=context.device)  # where the continuation starts
        for length in range(min(self.match, size - 1), 0, -1):
            back = torch.arange(length, 0, -1, device=context.device)
            suffix = context.gather(1, (known[:, None] - back).clamp(min=0))
            agree = (context.unfold(1, length, 1) == suffix[:, None]).all(-1)
            after = place[: agree.shape[1]] + length
            agree &= (after < known[:, None]) & (known[:, None] > length)
            latest = torch.where(agree, after, -1).amax(1)
            start = torch.where(start >= 0, start, latest)
        at = start[:, None] + torch.arange(count, device=context.device)
        real = (start[:, None] >= 0) & (at < known[:, None])
        tokens = torch.where(real, context.gather(1, at.clamp(0, size - 1)), EMPTY)
        step = torch.arange(count, device=context.device).expand(batch, -1)
        weight = (step + 1) * torch.tensor(self.repeats, dtype=torch.float64, device=context.device).log()
        return DraftTree(tokens=tokens, parent=step - 1, depth=step + 1, log_weight=weight, levels=count)


def first(tree: DraftTree, nodes: int) -> DraftTree:
    """Subtree of the first places of each row; a tree, since parents come before their children."""
    return DraftTree(
        tokens=tree.tokens[:, :nodes],
        parent=tree.parent[:, :nodes],
        depth=tree.depth[:, :nodes],
        log_weight=tree.log_weight[:, :nodes],
        levels=min(tree.levels, nodes),
    )
