"""What a verifier is given and what it returns: a draft with the target's laws at its nodes, and the tokens a round emits.

A verifier is a function `rule(proposal, chooser) -> Verified`. It moves from the root along drafted nodes for as long as it
accepts them and ends with one token of its own: the correction after a rejection, or the bonus at the end of the draft. Its
steps follow from the shape of the draft, so that the host waits for no tensor. All it draws goes through the chooser. Tokens
have the keys (response, position), like those of every engine here; coins, and the drafter's own draws, have keys that no
token has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape

EMPTY = -1  # the token of a place that holds no node
ROOT = -1  # the node before all drafted ones
SLOTS = 2**16  # keys of draws that are not tokens: so many belong to one position
DRAWN = 2**15  # slots below are a verifier's coins, slots from here on are a drafter's draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Drafts of B rows, N places each, and the next-token laws that decide about them.

    Parameters
    ----------
    tokens : Int64[Tensor, "B N"]           drafted tokens; -1 where there is no node
    parent : Int64[Tensor, "B N"] or [N]    place of the parent, before the node's own; -1 = the root. Among the children of
                                            a node the earlier place was drafted, and is tried, first
    target : Float[Tensor, "B N+1 V"]       log-probabilities (nats) of the policy to sample from: [:, 0] after the root,
                                            [:, j + 1] after place j. Of the law in use: after temperature, top-k and top-p
    drafter : Float[Tensor, "B N+1 V"]      those of the law that the node's children were drawn from (anything after a leaf);
                                            None for a draft that was not drawn, or for a rule that does not ask
    response : Int64[Tensor, " B"]          first half of every key (None: the row's number)
    position : Int64[Tensor, " B"]          number of tokens the response has so far (None: 0)
    levels : int                            no node is deeper (None: N)
    checked : bool                          whether the maker vouches for tokens, parents and laws. To look at them, the host
                                            waits for the device; an engine that made the tree itself need not

    Raises
    ------
    InputError   shapes that do not fit; unless `checked`, a token outside the vocabulary, a node before its parent, below an
                 empty place or deeper than `levels`, a token that the drafter's law cannot draw

    Examples
    --------
    >>> law = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]).log()
    >>> chain(torch.tensor([[1]]), target=law).depth
    tensor([[1]])
    """

    tokens: Int64[Tensor, "B N"]
    parent: Int64[Tensor, "..."]
    target: Float[Tensor, "B M V"]
    drafter: Float[Tensor, "B M V"] | None = None
    response: Int64[Tensor, " B"] | None = None
    position: Int64[Tensor, " B"] | None = None
    levels: int | None = None
    checked: bool = False

    def __post_init__(self) -> None:
        rows, places = self.tokens.shape
        if places >= DRAWN:
            raise InputError(f"a draft may have at most {DRAWN - 1} places", found=places)
        if self.parent.dim() == 1:
            object.__setattr__(self, "parent", self.parent.expand(rows, -1))
        require_shape("parent", self.parent, (rows, places))
        vocab_size = self.target.shape[-1]
        require_shape("target", self.target, (rows, places + 1, vocab_size))
        if self.drafter is not None:
            require_shape("drafter", self.drafter, (rows, places + 1, vocab_size))
        counted = torch.arange(rows, device=self.tokens.device)
        for name, default in (("response", counted), ("position", torch.zeros_like(counted))):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default)
            else:
                require_shape(name, value, (rows,))
        if not self.checked:
            self._check_tokens(vocab_size)
            self._check_order()
            self._check_drawn()

    def _check_tokens(self, vocab_size: int) -> None:
        if self.tokens.numel() and not (int(self.tokens.min()) >= EMPTY and int(self.tokens.max()) < vocab_size):
            raise InputError(
                f"drafted tokens must lie in 0..{vocab_size - 1}, or be {EMPTY} on an empty place",
                found=f"{int(self.tokens.min())} to {int(self.tokens.max())}",
            )

    def _check_order(self) -> None:
        if not self.tokens.numel():
            return
        real, up = self.tokens >= 0, self.parent.clamp(min=0)
        early = self.parent >= torch.arange(self.tokens.shape[1], device=self.tokens.device)
        orphan = (self.parent >= 0) & ~real.gather(1, up.clamp(max=self.tokens.shape[1] - 1))
        wrong = real & (early | orphan | (self.parent < ROOT))
        if bool(wrong.any()):
            row, place = torch.nonzero(wrong)[0].tolist()
            raise InputError(
                "a node's parent must be the root or a node before it",
                found=f"parent {int(self.parent[row, place])} of place {place} in row {row}",
            )
        if self.levels is not None and int(self.depth.max()) > self.levels:
            raise InputError("no node may be deeper than `levels`", found=f"{int(self.depth.max())} > {self.levels}")

    def _check_drawn(self) -> None:
        if self.drafter is None or not self.tokens.numel():
            return
        law = self.drafter.gather(1, (self.parent + 1)[..., None].expand(-1, -1, self.drafter.shape[2]))
        chance = law.gather(2, self.tokens.clamp(min=0)[..., None])[..., 0]
        impossible = torch.nonzero((self.tokens >= 0) & torch.isneginf(chance))
        if len(impossible):
            row, place = impossible[0].tolist()
            raise InputError(
                "`drafter` must be the law that the draft was drawn from",
                found=f"probability 0 for token {int(self.tokens[row, place])} at place {place} of row {row}",
                hint="pass the law after temperature, top-k and top-p",
            )

    @property
    def longest(self) -> int:
        """Most nodes that a path can have, as far as the host knows."""
        return self.tokens.shape[1] if self.levels is None else self.levels

    @property
    def depth(self) -> Int64[Tensor, "B N"]:
        """Number of tokens from the root to each node, itself included; 0 on empty places."""
        depth = torch.zeros_like(self.tokens)
        for j in range(self.tokens.shape[1]):
            up = self.parent[:, j]
            above = torch.where(up >= 0, depth.gather(1, up.clamp(min=0)[:, None])[:, 0], 0)
            depth[:, j] = torch.where(self.tokens[:, j] >= 0, above + 1, 0)
        return depth

    def select(self, rows: Int64[Tensor, " b"]) -> Proposal:
        """These rows, each with the response and position it has."""
        drafter, response, position = self.drafter, self.response, self.position
        return Proposal(
            tokens=self.tokens[rows],
            parent=self.parent[rows],
            target=self.target[rows],
            drafter=None if drafter is None else drafter[rows],
            response=None if response is None else response[rows],
            position=None if position is None else position[rows],
            levels=self.levels,
            checked=self.checked,
        )

    def target_law(self, rows: Int64[Tensor, " b"], node: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Probabilities of the target after a node of each row, in float64."""
        return _probabilities(self.target[rows, node + 1])

    def drafter_law(self, rows: Int64[Tensor, " b"], node: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Probabilities that the children of a node of each row were drawn with, in float64.

        Raises
        ------
        InputError   the proposal names no law
        """
        return _probabilities(self._drawn_from()[rows, node + 1])

    def tables(self) -> tuple[Float[Tensor, "B M V"], Float[Tensor, "B M V"]]:
        """Probabilities of the target and of the drafter after the root and after every place, in float64.

        Raises
        ------
        InputError   the proposal names no law of the drafter
        """
        return _probabilities(self.target), _probabilities(self._drawn_from())

    def above(self, place: int) -> Int64[Tensor, " B"]:
        """Place of each row's node above a place, -1 = the root. An empty place is above itself: its laws are nobody's."""
        return torch.where(self.tokens[:, place] >= 0, self.parent[:, place], place)

    def child_holding(
        self, rows: Int64[Tensor, " b"], node: Int64[Tensor, " b"], token: Int64[Tensor, " b"]
    ) -> Int64[Tensor, " b"]:
        """First child of each node that holds a token; -1 if there is none."""
        fits = (self.parent[rows] == node[:, None]) & (self.tokens[rows] == token[:, None])
        first = fits.to(torch.uint8).argmax(1) if fits.shape[1] else node
        return torch.where(fits.any(1), first, EMPTY)

    def token_key(self, rows: Int64[Tensor, " b"], accepted: Int64[Tensor, " b"]) -> Int64[Tensor, "b 2"]:
        """Key of the token that follows `accepted` drafted ones."""
        response, position = self._address(rows)
        return torch.stack([response, position + accepted], 1)

    def coin_key(self, rows: Int64[Tensor, " b"], slot: Int64[Tensor, " b"]) -> Int64[Tensor, "b 2"]:
        """Key of a draw that is no token: `slot` numbers those of one round."""
        response, position = self._address(rows)
        return torch.stack([response, unused_by_tokens(position, slot)], 1)

    def _drawn_from(self) -> Float[Tensor, "B M V"]:
        if self.drafter is None:
            raise InputError(
                "this rule needs the law that the draft was drawn from",
                found="`drafter` is None",
                hint="a draft that was not drawn is for `membership` or `point_mass`",
            )
        return self.drafter

    def _address(self, rows: Int64[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        response, position = self.response, self.position
        assert response is not None and position is not None  # filled in at construction
        return response[rows], position[rows]


def chain(
    tokens: Int64[Tensor, "B N"],
    *,
    target: Float[Tensor, "B M V"],
    drafter: Float[Tensor, "B M V"] | None = None,
    response: Int64[Tensor, " B"] | None = None,
    position: Int64[Tensor, " B"] | None = None,
) -> Proposal:
    """Return the proposal in which each token continues the one before it; shorter rows end in -1."""
    parent = torch.arange(tokens.shape[1], device=tokens.device) - 1
    return Proposal(tokens=tokens, parent=parent, target=target, drafter=drafter, response=response, position=position)


def unused_by_tokens(position: Int64[Tensor, " b"], slot: Int64[Tensor, " b"] | int) -> Int64[Tensor, " b"]:
    """Second half of the key of a draw that is no token: below -1, and another one for each position and slot."""
    return -2 - (position * SLOTS + slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What one round settled.

    accepted   [B]        drafted tokens accepted
    tokens     [B, L+1]   the tokens emitted: the accepted ones, then one correction or bonus; -1 behind (L: `levels`, or N)
    path       [B, L]     places of the accepted nodes, from the root on; -1 behind
    """

    accepted: Int64[Tensor, " B"]
    tokens: Int64[Tensor, "B M"]
    path: Int64[Tensor, "B N"]

    def emitted(self) -> list[tuple[int, ...]]:
        """Emitted tokens of each row, without what stands behind."""
        return [tuple(row[: n + 1]) for row, n in zip(self.tokens.tolist(), self.accepted.tolist(), strict=True)]


Verifier = Callable[[Proposal, Chooser], Verified]


def flip(chooser: Chooser, chance: Float[Tensor, " b"], key: Int64[Tensor, "b 2"]) -> Bool[Tensor, " b"]:
    """Return True with the given probability, per row; no rows, no draw."""
    if not len(chance):
        return torch.zeros(0, dtype=torch.bool, device=chance.device)
    heads = chance.clamp(0.0, 1.0)
    return chooser.choose(torch.stack([heads, 1 - heads], 1), key) == 0


def _probabilities(log_law: Float[Tensor, "*b V"]) -> Float[Tensor, "*b V"]:
    p = log_law.double().exp()
    return p / p.sum(-1, keepdim=True)
