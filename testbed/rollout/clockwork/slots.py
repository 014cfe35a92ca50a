"""Slots of an engine: where running responses stand, and who is asked for the laws of their next tokens."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.base import Policy


@runtime_checkable
class Slots(Protocol):
    """Responses of one version of the weights, each in a slot, each as long as it is."""

    policy: Any

    def admit(
        self,
        slots: Int64[Tensor, " b"],
        group: Int64[Tensor, " b"],
        tokens: Int64[Tensor, "b t"],
        written: Int64[Tensor, " b"],
    ) -> None:
        """Put a response into each slot: its prompt, and the first `written` of its tokens; zeros stand beyond."""
        ...

    def append(self, slots: Int64[Tensor, " b"], tokens: Int64[Tensor, " b"]) -> None:
        """Write the next token of each response."""
        ...

    def next_log_probs(self, slots: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the next token of each response, float64."""
        ...

    def take(self, policy: Any) -> None:
        """Go on under these weights."""
        ...

    def forget(self) -> None:
        """Read every response again."""
        ...

    def clear(self) -> None:
        """Empty all slots."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything but the weights, copied."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        ...


class PlainSlots:
    """Slots of a policy that keeps nothing between tokens: it is asked for one law per prefix, one length at a time.

    Examples
    --------
    >>> from testbed.policies.tabular import TabularPolicy
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]]))
    >>> held, slots = PlainSlots(pi, slots=2, room=2), torch.tensor([0, 1])
    >>> held.admit(slots, torch.tensor([0, 0]), torch.tensor([[0, 0], [1, 0]]), torch.tensor([0, 1]))
    >>> held.next_log_probs(slots).exp()
    tensor([[0.5000, 0.5000],
            [0.3000, 0.7000]], dtype=torch.float64)
    """

    def __init__(self, policy: Policy, slots: int, room: int) -> None:
        self.policy = policy
        self.tokens = torch.zeros(slots, room, dtype=torch.int64)
        self.written = torch.zeros(slots, dtype=torch.int64)
        self.group = torch.zeros(slots, dtype=torch.int64)

    def take(self, policy: Policy) -> None:
        """Go on under this policy."""
        self.policy = policy

    def forget(self) -> None:
        """Nothing is kept that could be dropped."""

    def clear(self) -> None:
        """Nothing is kept of responses that have left."""

    def admit(
        self,
        slots: Int64[Tensor, " b"],
        group: Int64[Tensor, " b"],
        tokens: Int64[Tensor, "b t"],
        written: Int64[Tensor, " b"],
    ) -> None:
        """Put a response into each slot."""
        self.tokens[slots], self.written[slots], self.group[slots] = tokens, written, group

    def append(self, slots: Int64[Tensor, " b"], tokens: Int64[Tensor, " b"]) -> None:
        """Write the next token of each response."""
        self.tokens[slots, self.written[slots]] = tokens
        self.written[slots] += 1

    @torch.no_grad()
    def next_log_probs(self, slots: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the next token of each response, float64."""
        written = self.written[slots]
        lengths = written.unique().tolist()
        if len(lengths) == 1:
            return self._laws(slots, lengths[0])
        laws = torch.empty(len(slots), self.policy.vocab_size, dtype=torch.float64)
        for length in lengths:
            here = written == length
            laws[here] = self._laws(slots[here], length)
        return laws

    def _laws(self, slots: Tensor, length: int) -> Tensor:
        policy = self.policy.at(self.group[slots])
        return policy.next_log_probs(self.tokens[slots, :length]).to("cpu", torch.float64)

    def state(self) -> dict[str, Any]:
        """Return everything but the policy, copied."""
        return {"tokens": self.tokens.clone(), "written": self.written.clone(), "group": self.group.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        self.tokens, self.written, self.group = (state[name].clone() for name in ("tokens", "written", "group"))
