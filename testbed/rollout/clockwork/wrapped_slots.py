"""Slots of policies around others: what is inside keeps its cache, and its laws are filtered or disturbed."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.noise.streams import PrefixKey
from testbed.policies.perturbed import Perturbed
from testbed.policies.truncated import Truncated
from testbed.rollout.clockwork.slots import Slots


class WrappedSlots:
    """What all wrappers share: everything but the law is left to the slots inside."""

    def __init__(self, policy: Truncated | Perturbed, inner: Slots) -> None:
        self.policy, self.inner = policy, inner

    def admit(
        self,
        slots: Int64[Tensor, " b"],
        group: Int64[Tensor, " b"],
        tokens: Int64[Tensor, "b t"],
        written: Int64[Tensor, " b"],
    ) -> None:
        """Put a response into each slot."""
        self.inner.admit(slots, group, tokens, written)

    def append(self, slots: Int64[Tensor, " b"], tokens: Int64[Tensor, " b"]) -> None:
        """Write the next token of each response."""
        self.inner.append(slots, tokens)

    def take(self, policy: Any) -> None:
        """Go on under this policy."""
        self.policy = policy
        self.inner.take(policy.policy)

    def forget(self) -> None:
        """Read every response again."""
        self.inner.forget()

    def clear(self) -> None:
        """Empty all slots."""
        self.inner.clear()

    def state(self) -> dict[str, Any]:
        """Return everything but the policy, copied."""
        return {"inner": self.inner.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        self.inner.restore(state["inner"])


class FilteredSlots(WrappedSlots):
    """Slots of a policy seen through temperature, top-k or top-p."""

    policy: Truncated

    def next_log_probs(self, slots: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the next token of each response, float64."""
        return self.policy.filter(self.inner.next_log_probs(slots))


class NoisySlots(WrappedSlots):
    """Slots of a policy with noise on its logits: the noise of a response's prefix, which grows."""

    policy: Perturbed

    def __init__(self, policy: Perturbed, inner: Slots) -> None:
        super().__init__(policy, inner)
        self.prompt: dict[int, int] = {}  # of each slot in use
        self.tokens: dict[int, list[int]] = {}
        self.keys: dict[int, PrefixKey] = {}

    def admit(
        self,
        slots: Int64[Tensor, " b"],
        group: Int64[Tensor, " b"],
        tokens: Int64[Tensor, "b t"],
        written: Int64[Tensor, " b"],
    ) -> None:
        """Put a response into each slot."""
        super().admit(slots, group, tokens, written)
        rows = zip(slots.tolist(), group.tolist(), tokens.tolist(), written.tolist(), strict=True)
        for slot, prompt, response, length in rows:
            self.prompt[slot], self.tokens[slot] = prompt, response[:length]
            self.keys.pop(slot, None)

    def append(self, slots: Int64[Tensor, " b"], tokens: Int64[Tensor, " b"]) -> None:
        """Write the next token of each response."""
        super().append(slots, tokens)
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            self.tokens[slot].append(token)

    def take(self, policy: Perturbed) -> None:
        """Go on under this policy, whose noise is its own."""
        super().take(policy)
        self.keys = {}

    def next_log_probs(self, slots: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the next token of each response, float64."""
        law, asked = self.inner.next_log_probs(slots), slots.tolist()
        new = [slot for slot in asked if slot not in self.keys]
        if new:
            prompts = torch.tensor([self.prompt[slot] for slot in new])
            self.keys.update(zip(new, self.policy.at(prompts).roots(len(new)), strict=True))
        for slot in asked:
            key = self.keys[slot]
            self.keys[slot] = key.then(self.tokens[slot][key.length :])
        return self.policy.disturbed([self.keys[slot] for slot in asked], law)

    def state(self) -> dict[str, Any]:
        """Return everything but the policy, copied."""
        tokens = {slot: list(written) for slot, written in self.tokens.items()}
        return super().state() | {"prompt": dict(self.prompt), "tokens": tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        super().restore(state)
        self.prompt = dict(state["prompt"])
        self.tokens, self.keys = {slot: list(written) for slot, written in state["tokens"].items()}, {}
