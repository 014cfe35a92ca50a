"""A decoder whose newest tokens may branch: one pass over rival continuations, of which one path is then kept.

Every row has its own length. The tokens of a pass stand in the slots behind a row's kept tokens, in the order given, and see
the kept tokens and those of the pass that they are told they continue; a token's position is the row's length plus its
depth, whatever its slot. Keeping a path moves its keys and values to the slots right behind the kept ones, where the next
pass takes them for ordinary context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.policies.transformer.block import Place
from testbed.policies.transformer.cache import KeyValueCache
from testbed.policies.transformer.forward import full_place, next_token_laws, residual_stream

if TYPE_CHECKING:
    from testbed.policies.transformer.policy import TransformerPolicy


class TreeDecoder:
    """Keys and values of responses that grow by a path of a tree at a time.

    Parameters
    ----------
    policy : TransformerPolicy    with cached numerics and its own router's choices
    group : Int64[Tensor, " B"]   prompt of each row
    room : int                    slots to hold from the start, beyond the prompts (more are made when needed)

    Raises
    ------
    InputError   an engine without a cache, or one that replays recorded experts

    Examples
    --------
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0))
    >>> decoder = TreeDecoder(pi, torch.tensor([0]))
    >>> first = decoder.start()  # the law of the first token is read from it
    >>> tree = decoder.extend(torch.tensor([[1, 0, 2]]), torch.tensor([[0, 1, 1]]), torch.eye(3, dtype=torch.bool)[None]
    ...     | (torch.arange(3) == 0))  # the root 1 and two rivals 0 and 2 behind it
    >>> decoder.keep(torch.tensor([[2]]), torch.tensor([1]))  # the second one stays
    >>> laws = decoder.laws(tree)[:, 2]
    >>> torch.allclose(laws, pi.next_log_probs(torch.tensor([[1, 2]])), rtol=0, atol=1e-12)
    True
    """

    def __init__(self, policy: TransformerPolicy, group: Int64[Tensor, " B"], room: int = 0) -> None:
        if not policy.numerics.cached or policy.replayed is not None:
            found = "replayed experts" if policy.numerics.cached else "Numerics(cached=False)"
            raise InputError(
                "a tree is decoded against cached keys and values, with the router's own experts", found=found
            )
        policy = policy.at(group)
        self.config, self.numerics = policy.config, policy.numerics
        self.prompts = policy.rows(group.shape[0])
        with torch.no_grad():
            self.weights = policy.weights()
        rows, slots = self.prompts.tokens.shape
        self.length = self.prompts.lengths  # tokens of each row whose keys and values are kept
        self.longest = slots  # no row is longer
        policy.require_room(slots)
        self.cache = KeyValueCache(self.config, rows, slots + room, self.numerics.format, policy.model.device)

    def start(self) -> Float[Tensor, "b d"]:
        """Pass over start ids and prompts; return the stream that the first token's law is read from."""
        return self.last(self.opened())

    @torch.no_grad()
    def opened(self) -> Float[Tensor, "b L d"]:
        """Pass over start ids and prompts; return the stream at each of their slots (what lies beyond a row means nothing)."""
        batch, slots = self.prompts.tokens.shape
        whole = full_place(batch, slots, self.prompts.tokens.device)
        place = Place(positions=whole.positions, visible=whole.visible, cache=self.cache)
        return residual_stream(self.prompts.tokens, self.weights, place, self.config, self.numerics)[0]

    def last(self, x: Float[Tensor, "b L d"]) -> Float[Tensor, "b d"]:
        """Stream at every row's last kept token."""
        return x.gather(1, (self.length - 1)[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]

    @torch.no_grad()
    def extend(
        self, tokens: Int64[Tensor, "b c"], depth: Int64[Tensor, "b c"], sees: Bool[Tensor, "b c c"]
    ) -> Float[Tensor, "b c d"]:
        """Stream of new tokens, of which nothing is kept yet.

        Parameters
        ----------
        tokens : Int64[Tensor, "b c"]    the tokens of the pass, the first of each row certain to follow its kept ones
        depth : Int64[Tensor, "b c"]     how many tokens of the pass stand between a token and the kept ones
        sees : Bool[Tensor, "b c c"]     sees[b, i, j]: token i continues token j, or is it
        """
        require_shape("depth", depth, tuple(tokens.shape))
        count = tokens.shape[1]
        self.cache.grow(self.longest + count)
        place = Place(
            positions=node_positions(self.length, depth).clamp(max=self.config.context - 1),
            visible=visible_slots(self.length, sees, self.longest + count),
            cache=self.cache,
            slots=self.length[:, None] + torch.arange(count, device=tokens.device),
        )
        return residual_stream(tokens, self.weights, place, self.config, self.numerics)[0]

    @torch.no_grad()
    def laws(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b V"]:
        """Float64 log-probabilities of the token after each of these states."""
        return next_token_laws(x, self.weights, self.config, self.numerics)

    def keep(self, path: Int64[Tensor, "b k"], accepted: Int64[Tensor, " b"]) -> None:
        """Keep the first token of the last pass and `accepted` more: those at the leading places of `path`.

        Parameters
        ----------
        path : Int64[Tensor, "b k"]       places in the last pass, increasing; what lies beyond `accepted` is ignored
        accepted : Int64[Tensor, " b"]    0..k
        """
        step = torch.arange(1, path.shape[1] + 1, device=path.device)
        source = torch.where(step <= accepted[:, None], path, step)
        if path.shape[1]:
            self.cache.moved(self.length[:, None] + source, self.length[:, None] + step)
        self.length = self.length + 1 + accepted
        self.longest += 1 + path.shape[1]

    def only(self, rows: Int64[Tensor, " b"], longest: int) -> None:
        """Go on with these rows, none of which is longer than `longest`."""
        if len(rows) < len(self.length):
            self.cache.only(rows)
            self.length = self.length[rows]
        self.longest = longest


def node_positions(length: Int64[Tensor, " b"], depth: Int64[Tensor, "b c"]) -> Int64[Tensor, "b c"]:
    """Position of each token of a tree: how many tokens come before it on its own path."""
    return length[:, None] + depth


def visible_slots(length: Int64[Tensor, " b"], sees: Bool[Tensor, "b c k"], used: int) -> Bool[Tensor, "b c S"]:
    """Slots that each token of a pass attends to: all kept ones, and those of the k behind them that it continues.

    Examples
    --------
    >>> sees = torch.tensor([[[True, False], [True, True]]])
    >>> visible_slots(torch.tensor([1]), sees, 4).long()
    tensor([[[1, 1, 0, 0],
             [1, 1, 1, 0]]])
    """
    count, width = sees.shape[1:]
    place = torch.arange(used, device=length.device) - length[:, None]
    inside = (place >= 0) & (place < width)
    index = place.clamp(0, width - 1)[:, None].expand(-1, count, -1)
    return (place < 0)[:, None] | (sees.gather(2, index) & inside[:, None])
