"""The sampler's side of a transformer: one-token steps against cached keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.base import Decoder
from testbed.policies.transformer.block import Place
from testbed.policies.transformer.cache import KeyValueCache
from testbed.policies.transformer.forward import full_place, next_token_laws, residual_stream
from testbed.policies.transformer.routing import Routes

if TYPE_CHECKING:
    from testbed.policies.transformer.policy import TransformerPolicy


class CachedDecoder(Decoder):
    """Decoder that feeds the model only what it has not seen of each row.

    Rows may be asked about in any order and number, and may come back several tokens longer; what a row showed before and
    shows differently now is seen again from the first difference on. The weights are those of the moment of opening.
    With `Numerics(cached=False)` nothing is kept and every step passes over the whole context. Rows asked about have the
    first lines of the cache, so that a pass reads their keys and values where they lie.

    Parameters
    ----------
    policy : TransformerPolicy    conditioned on these prompts, if it has any
    group : Int64[Tensor, " B"]   prompt of each row

    Examples
    --------
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0))
    >>> decoder, rows = pi.decoder(torch.zeros(2, dtype=torch.int64)), torch.tensor([0, 1])
    >>> step = decoder.next_log_probs(torch.tensor([[0, 1], [2, 2]]), rows)
    >>> torch.allclose(step, pi.next_log_probs(torch.tensor([[0, 1], [2, 2]])), rtol=0, atol=1e-12)
    True
    """

    def __init__(self, policy: TransformerPolicy, group: Int64[Tensor, " B"]) -> None:
        self.policy, self.group = policy, group
        self.config, self.numerics = policy.config, policy.numerics
        self.prompts = policy.rows(group.shape[0])
        with torch.no_grad():
            self.weights = policy.weights()
        rows, slots = self.prompts.tokens.shape
        device = self.weights["embedding"].device
        self.cache = KeyValueCache(self.config, rows, slots, self.numerics.format, device)
        self.line = list(range(rows))  # the row that each line of the cache belongs to
        self.seen = [-1] * rows  # response tokens of each row whose keys and values are held; -1: nor are its prompt's
        self.shown = torch.zeros(rows, 0, dtype=torch.int64, device=device)  # response tokens as they were last shown
        shape = (rows, slots, self.config.layers, self.config.experts_per_token)
        self.experts = torch.full(shape, -1, device=device) if self.config.experts else None

    @torch.no_grad()
    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Float64 log-probabilities of the token after each prefix; prefix i is that of row `rows[i]`."""
        if len(rows) == 0:
            return torch.zeros(0, self.policy.vocab_size, dtype=torch.float64, device=prefix.device)
        asked = rows.tolist()
        order = self._in_front(asked) if self.numerics.cached else None
        prefix, rows = prefix.to(self.shown.device), rows.to(self.shown.device)
        if order is not None:
            prefix, rows = prefix[order], rows[order]
        known = self._already_seen(prefix, rows, asked)
        x = self._pass(prefix, rows, known)
        self._remember(prefix, rows, asked)
        if order is not None:
            x = torch.empty_like(x).index_copy_(0, order, x)
        return next_token_laws(x, self.weights, self.config, self.numerics)

    def routes(self) -> Routes:
        """Return the experts that acted on every token shown so far.

        Raises
        ------
        InputError   for a dense model
        """
        if self.experts is None:
            raise InputError("routes need a mixture of experts", found="a dense model")
        return Routes(self.experts.clone(), self.prompts.lengths - 1)

    def _in_front(self, asked: list[int]) -> Int64[Tensor, " b"] | None:
        """Let these rows have the cache's first lines; return which of them has each line (None: in the order asked)."""
        count, wanted = len(asked), set(asked)
        coming = [line for line, row in enumerate(self.line[count:], count) if row in wanted]
        if coming:
            going = [line for line, row in enumerate(self.line[:count]) if row not in wanted]
            self.cache.exchange(going, coming)
            for here, there in zip(going, coming, strict=True):
                self.line[here], self.line[there] = self.line[there], self.line[here]
        if self.line[:count] == asked:
            return None
        place = {row: i for i, row in enumerate(asked)}
        return torch.tensor([place[row] for row in self.line[:count]], device=self.shown.device)

    def _already_seen(self, prefix: Tensor, rows: Tensor, asked: list[int]) -> int:
        """Leading response tokens that are held, and still valid, of all these rows; the last token is always fed."""
        if not self.numerics.cached:
            return -1
        seen = min(prefix.shape[1], min(self.seen[row] for row in asked))
        if seen > 0:
            differs = (self.shown[rows, :seen] != prefix[:, :seen]).any(0)
            seen = int(differs.long().argmax()) if bool(differs.any()) else seen
        return min(seen, prefix.shape[1] - 1)

    def _pass(self, prefix: Tensor, rows: Tensor, known: int) -> Float[Tensor, "b d"]:
        """Residual stream at the last token of each row; `known` response tokens are not fed (-1: all are, and the prompt)."""
        length = self.prompts.lengths[rows] + prefix.shape[1]
        used = self.prompts.tokens.shape[1] + prefix.shape[1]
        self.policy.require_room(used)
        if known < 0:
            used = int(length.max())
            chunk = self.prompts.of(rows).followed_by(prefix)[:, :used]  # beyond a row's length: overwritten later
            slot = torch.arange(used, device=prefix.device).expand(len(rows), -1)
        else:
            chunk = prefix[:, known:]
            slot = length[:, None] + torch.arange(known - prefix.shape[1], 0, device=prefix.device)
        forced = None
        if self.policy.replayed is not None:
            recorded = self.policy.replayed.over(used, len(self.line))[rows]
            forced = recorded[torch.arange(len(rows), device=slot.device)[:, None], slot]
        if self.numerics.cached:
            self.cache.grow(used)
            visible = torch.arange(used, device=slot.device) <= slot[:, :, None]
            place = Place(positions=slot, visible=visible, cache=self.cache)
        else:
            place = full_place(chunk.shape[0], chunk.shape[1], chunk.device)
        x, experts = residual_stream(chunk, self.weights, place, self.config, self.numerics, forced)
        if self.experts is not None and experts is not None:
            missing = used - self.experts.shape[1]
            self.experts = torch.nn.functional.pad(self.experts, (0, 0, 0, 0, 0, max(0, missing)), value=-1)
            real = (slot < length[:, None])[:, :, None, None]
            self.experts[rows[:, None], slot] = torch.where(real, experts, -1)
        last = (length - 1 - slot[:, 0])[:, None, None].expand(-1, 1, x.shape[-1])
        return x.gather(1, last)[:, 0]

    def _remember(self, prefix: Tensor, rows: Tensor, asked: list[int]) -> None:
        missing = prefix.shape[1] - self.shown.shape[1]
        if missing > 0:
            self.shown = torch.nn.functional.pad(self.shown, (0, max(missing, self.shown.shape[1])))
        self.shown[rows, : prefix.shape[1]] = prefix
        for row in asked:
            self.seen[row] = prefix.shape[1]
