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
    With `Numerics(cached=False)` nothing is kept and every step passes over the whole context.

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
            held = policy.weights()
            same = policy.model.weights  # an optimizer changes these in place
            self.weights = {n: w.clone() if w.dtype == same[n].dtype else w for n, w in held.items()}
        rows, slots = self.prompts.tokens.shape
        device = self.weights["embedding"].device
        self.cache = KeyValueCache(self.config, rows, slots, self.numerics.format, device)
        self.seen = torch.zeros(rows, dtype=torch.int64, device=device)
        self.context = torch.zeros(rows, slots, dtype=torch.int64, device=device)
        shape = (rows, slots, self.config.layers, self.config.experts_per_token)
        self.experts = torch.full(shape, -1, device=device) if self.config.experts else None

    @torch.no_grad()
    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Float64 log-probabilities of the token after each prefix; prefix i is that of row `rows[i]`."""
        if len(rows) == 0:
            return torch.zeros(0, self.policy.vocab_size, dtype=torch.float64, device=prefix.device)
        prefix, rows = prefix.to(self.seen.device), rows.to(self.seen.device)
        prompts = self.prompts.of(rows)
        context = prompts.followed_by(prefix)
        self.policy.require_room(context.shape[1])
        length = prompts.lengths + prefix.shape[1]
        start = self._already_seen(context, length, rows) if self.numerics.cached else torch.zeros_like(length)
        offset = torch.arange(int((length - start).max()), device=context.device)
        slot = start[:, None] + offset  # beyond a row's length: slots that its next tokens will overwrite
        chunk = context.gather(1, slot.clamp(max=context.shape[1] - 1))
        x, experts = self._pass(chunk, slot, rows, int(slot.max()) + 1)
        self._remember(context, length, rows, slot, experts)
        last = (length - start - 1)[:, None, None].expand(-1, 1, x.shape[-1])
        return next_token_laws(x.gather(1, last)[:, 0], self.weights, self.config, self.numerics)

    def routes(self) -> Routes:
        """Return the experts that acted on every token shown so far.

        Raises
        ------
        InputError   for a dense model
        """
        if self.experts is None:
            raise InputError("routes need a mixture of experts", found="a dense model")
        return Routes(self.experts.clone(), self.prompts.lengths - 1)

    def _already_seen(self, context: Tensor, length: Tensor, rows: Tensor) -> Tensor:
        """Leading tokens of each row whose keys and values are held and still valid; the last token is always fed."""
        known = min(context.shape[1], self.context.shape[1])
        slot = torch.arange(known, device=context.device)
        agree = (self.context[rows, :known] == context[:, :known]) & (slot < self.seen[rows, None])
        return torch.minimum(agree.long().cumprod(1).sum(1), length - 1)

    def _pass(self, chunk: Tensor, slot: Tensor, rows: Tensor, used: int) -> tuple[Tensor, Tensor | None]:
        """Residual stream and experts of the tokens fed."""
        forced = None
        if self.policy.replayed is not None:
            recorded = self.policy.replayed.over(used, len(self.prompts.lengths))[rows]
            forced = recorded[torch.arange(len(rows), device=slot.device)[:, None], slot]
        if not self.numerics.cached:
            place = full_place(chunk.shape[0], chunk.shape[1], chunk.device)
        else:
            self.cache.grow(used)
            visible = torch.arange(used, device=slot.device) <= slot[:, :, None]
            positions = slot.clamp(max=self.config.context - 1)
            place = Place(positions=positions, visible=visible, cache=self.cache, rows=rows)
        return residual_stream(chunk, self.weights, place, self.config, self.numerics, forced)

    def _remember(self, context: Tensor, length: Tensor, rows: Tensor, slot: Tensor, experts: Tensor | None) -> None:
        width = max(context.shape[1], int(slot.max()) + 1)
        missing = width - self.context.shape[1]
        if missing > 0:
            self.context = torch.nn.functional.pad(self.context, (0, missing))
            if self.experts is not None:
                self.experts = torch.nn.functional.pad(self.experts, (0, 0, 0, 0, 0, missing), value=-1)
        self.context[rows, : context.shape[1]] = context
        self.seen[rows] = length
        if self.experts is not None and experts is not None:
            real = (slot < length[:, None])[:, :, None, None]
            self.experts[rows[:, None], slot] = torch.where(real, experts, -1)
