"""A decoder whose rows are slots: responses of different lengths come and go, and the weights may change under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.block import Place
from testbed.policies.transformer.cache import KeyValueCache
from testbed.policies.transformer.forward import full_place, next_token_laws, residual_stream

if TYPE_CHECKING:
    from testbed.policies.transformer.policy import TransformerPolicy


TENSORS = ("context", "prompt", "length", "seen")


class SlotDecoder:
    """Laws of the next tokens of the responses that stand in some slots, whatever their lengths.

    Every step is one pass. Responses that march in step are fed exactly as `CachedDecoder` feeds them, so their laws have
    the same bits; where some are new and others go on, every token to be read becomes a row of its own, so that nothing is
    padded.

    Parameters
    ----------
    policy : TransformerPolicy   not conditioned on prompts; its weights must not change while it is held
    slots : int                  responses there is room for
    room : int                   most tokens of a response

    Raises
    ------
    InputError   a policy told which row answers which, or one that replays experts; responses longer than the context

    Examples
    --------
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0))
    >>> decoder, slots = SlotDecoder(pi, slots=2, room=4), torch.tensor([0, 1])
    >>> decoder.admit(slots, torch.zeros(2, dtype=torch.int64), torch.tensor([[1, 2], [1, 0]]), torch.tensor([2, 1]))
    >>> law = decoder.next_log_probs(slots)
    >>> torch.allclose(law[:1], pi.next_log_probs(torch.tensor([[1, 2]])), rtol=0, atol=1e-12)
    True
    """

    def __init__(self, policy: TransformerPolicy, slots: int, room: int) -> None:
        if policy.group is not None or policy.replayed is not None:
            raise InputError(
                "slots need a policy without `at` and without replayed experts",
                found="rows of its own",
                hint="slots are told their prompts when a response enters",
            )
        policy.require_room(policy.prompts.tokens.shape[1] + room - 1)  # the last token is never fed
        self.config, self.numerics, self.prompts = policy.config, policy.numerics, policy.prompts
        self.longest, device = policy.prompts.tokens.shape[1], policy.model.device
        self.context = torch.zeros(slots, self.longest + room, dtype=torch.int64, device=device)
        self.prompt = torch.ones(
            slots, dtype=torch.int64, device=device
        )  # tokens before the response, the start id included
        self.length = torch.ones(slots, dtype=torch.int64, device=device)
        self.clear()
        self.take(policy)

    def clear(self) -> None:
        """Empty all slots."""
        count, device = len(self.length), self.length.device
        self.seen = torch.zeros(count, dtype=torch.int64, device=device)
        self.line = list(range(count))  # the slot that each line of the cache belongs to
        self.cache = KeyValueCache(self.config, count, self.longest, self.numerics.format, device)

    def take(self, policy: TransformerPolicy) -> None:
        """Go on under these weights; what was seen under others stays in the cache until `forget`.

        Raises
        ------
        InputError   another model shape or engine
        """
        if policy.config != self.config or policy.numerics != self.numerics:
            raise InputError("new weights must be those of the same model and engine", found=f"{policy.config}")
        self.policy = policy
        with torch.no_grad():
            self.weights = policy.weights()

    def forget(self) -> None:
        """Drop all keys and values: every response is read again."""
        self.seen.zero_()

    def admit(
        self,
        slots: Int64[Tensor, " b"],
        group: Int64[Tensor, " b"],
        tokens: Int64[Tensor, "b t"],
        written: Int64[Tensor, " b"],
    ) -> None:
        """Put a response into each slot: its prompt, and the first `written` of its tokens; zeros stand beyond."""
        slots, device = slots.to(self.seen.device), self.seen.device
        prompts = self.prompts.of(group.to(device))
        context = prompts.followed_by(tokens.to(device))
        self.context[slots] = torch.nn.functional.pad(context, (0, self.context.shape[1] - context.shape[1]))
        self.prompt[slots], self.seen[slots] = prompts.lengths, 0
        self.length[slots] = prompts.lengths + written.to(device)

    def append(self, slots: Int64[Tensor, " b"], tokens: Int64[Tensor, " b"]) -> None:
        """Write the next token of each response."""
        slots = slots.to(self.seen.device)
        self.context[slots, self.length[slots]] = tokens.to(self.seen.device)
        self.length[slots] += 1

    @torch.no_grad()
    def next_log_probs(self, slots: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Float64 log-probabilities of the next token of each response, on the CPU."""
        asked, slots = slots.tolist(), slots.to(self.seen.device)
        order = self._in_front(asked) if self.numerics.cached else None
        slots = slots if order is None else slots[order]
        length, seen = self.length[slots], self.seen[slots]
        count = length - torch.minimum(seen, length - 1) if self.numerics.cached else length
        if self.numerics.cached and bool(seen.any()) and int(count.max()) > 1:
            x = self._one_by_one(slots, length, count)
        else:
            x = self._side_by_side(slots, length, count)
        self.seen[slots] = length
        if order is not None:
            x = torch.empty_like(x).index_copy_(0, order, x)
        return next_token_laws(x, self.weights, self.config, self.numerics).cpu()

    def _in_front(self, asked: list[int]) -> Int64[Tensor, " b"] | None:
        """Let these slots have the cache's first lines; return which of them has each line (None: in the order asked)."""
        count, wanted = len(asked), set(asked)
        coming = [line for line, slot in enumerate(self.line[count:], count) if slot in wanted]
        if coming:
            going = [line for line, slot in enumerate(self.line[:count]) if slot not in wanted]
            self.cache.exchange(going, coming)
            for here, there in zip(going, coming, strict=True):
                self.line[here], self.line[there] = self.line[there], self.line[here]
        if self.line[:count] == asked:
            return None
        place = {slot: i for i, slot in enumerate(asked)}
        return torch.tensor([place[slot] for slot in self.line[:count]], device=self.seen.device)

    def _side_by_side(self, slots: Tensor, length: Tensor, count: Tensor) -> Float[Tensor, "b d"]:
        """Last stream of the slots on the first lines, from a pass as wide as the most tokens one of them has not seen."""
        width = int(count.max())
        position = (length - count)[:, None] + torch.arange(width, device=slots.device)
        known = self.context[slots]
        chunk = known.gather(1, position.clamp(max=known.shape[1] - 1))  # beyond a row's length: overwritten later
        if not self.numerics.cached:
            place = full_place(len(slots), width, slots.device)
        elif width == 1:
            place = self._place(position, self.longest + int((length - self.prompt[slots]).max()))
        else:
            place = self._place(position, int(position.max()) + 1)
        x, _ = residual_stream(chunk, self.weights, place, self.config, self.numerics)
        return x.gather(1, (count - 1)[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]

    def _one_by_one(self, slots: Tensor, length: Tensor, count: Tensor) -> Float[Tensor, "b d"]:
        """Last stream of the slots on the first lines, from a pass in which every token not seen is a row of its own."""
        end = count.cumsum(0)
        row = torch.repeat_interleave(torch.arange(len(slots), device=slots.device), count)
        position = (length - end)[row] + torch.arange(len(row), device=slots.device)
        place = self._place(position[:, None], int(length.max()), row)
        chunk = self.context[slots[row], position][:, None]
        x, _ = residual_stream(chunk, self.weights, place, self.config, self.numerics)
        return x[end - 1, 0]

    def _place(self, position: Tensor, used: int, lines: Tensor | None = None) -> Place:
        self.cache.grow(used)
        visible = torch.arange(used, device=position.device) <= position[:, :, None]
        return Place(positions=position, visible=visible, cache=self.cache, rows=lines)

    def state(self) -> dict[str, Any]:
        """Return everything but the weights, copied."""
        tensors = {name: getattr(self, name).clone() for name in TENSORS}
        keys, values = ([x.clone() for x in store] for store in (self.cache.keys, self.cache.values))
        return tensors | {"line": list(self.line), "keys": keys, "values": values}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        device = self.seen.device
        for name in TENSORS:
            setattr(self, name, state[name].clone().to(device))
        self.line = list(state["line"])
        self.cache.keys, self.cache.values = (
            [x.clone().to(device) for x in state[name]] for name in ("keys", "values")
        )
