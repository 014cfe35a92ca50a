"""What a rollout showed of its target: every response's tokens, and the target's stream at each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.policies.transformer.forward import full_place, residual_stream
from testbed.policies.transformer.policy import TOKENS_AT_ONCE, TransformerPolicy
from testbed.rollout.speculative.drafters import Frontier
from testbed.rollout.speculative.rounds import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRecord:
    """Tokens and features of n responses; slot s is the s-th token of start id, prompt and response.

    Parameters
    ----------
    context : Int64[Tensor, "n S"]     tokens
    states : Float[Tensor, "n S d"]    features of all tokens but the last known one, which no pass has read
    first : Int64[Tensor, " n"]        slot of the response's first token
    known : Int64[Tensor, " n"]        slots that hold tokens; what stands beyond them means nothing
    """

    context: Int64[Tensor, "n S"]
    states: Float[Tensor, "n S d"]
    first: Int64[Tensor, " n"]
    known: Int64[Tensor, " n"]

    def learnable(self) -> Bool[Tensor, "n S"]:
        """Response tokens whose feature is known: all but a response's last."""
        slot = torch.arange(self.context.shape[1], device=self.context.device)
        return (slot >= self.first[:, None]) & (slot < self.known[:, None] - 1)

    def select(self, rows: Int64[Tensor, " k"]) -> FeatureRecord:
        """Return these responses only, without slots that none of them uses."""
        used = int(self.known[rows].max()) if len(rows) else 0
        return FeatureRecord(
            context=self.context[rows, :used],
            states=self.states[rows, :used],
            first=self.first[rows],
            known=self.known[rows],
        )

    @staticmethod
    def opened(frontier: Frontier) -> FeatureRecord:
        """Return the record of a rollout that has shown its prompts, with room for its responses."""
        opening = frontier.opening
        room = frontier.context.shape[1] + 1 - opening.context.shape[1]  # the last slot takes what is dropped
        return FeatureRecord(
            context=torch.nn.functional.pad(opening.context, (0, room)),
            states=torch.nn.functional.pad(opening.states, (0, 0, 0, room)),
            first=opening.known,
            known=opening.known.clone(),
        )

    def note(self, rows: Int64[Tensor, " b"], finished: Round) -> None:
        """Write down, in place, the tokens that a round emitted and the features that its pass showed on their path."""
        frontier, run, spare = finished.frontier, finished.run, self.context.shape[1] - 1
        step = torch.arange(run.tokens.shape[1], device=rows.device)
        at = frontier.known[:, None] + step
        self.context[rows, :spare] = frontier.context  # the first root was drawn before any round
        self.context[rows[:, None], torch.where(finished.emitted, at, spare)] = run.tokens.clamp(min=0)
        path = run.places()[:, :, None].expand(-1, -1, finished.states.shape[-1])
        self.states[rows[:, None], torch.where(finished.emitted, at - 1, spare)] = finished.states.gather(1, path)
        self.known[rows] = frontier.known + finished.emitted.sum(1)

    @staticmethod
    @torch.no_grad()
    def of(policy: TransformerPolicy, batch: SegmentedBatch) -> FeatureRecord:
        """Return the record of responses that were written before, from passes over them."""
        policy = policy.at(batch.group)
        prompts = policy.rows(batch.batch_size)
        context = prompts.followed_by(batch.tokens.to(policy.model.device))
        policy.require_room(context.shape[1])
        weights, states = policy.weights(), []
        for part in context.split(max(1, TOKENS_AT_ONCE // context.shape[1])):
            place = full_place(len(part), part.shape[1], part.device)
            states.append(residual_stream(part, weights, place, policy.config, policy.numerics)[0])
        known = prompts.lengths + batch.lengths.to(context.device)
        return FeatureRecord(context=context, states=torch.cat(states), first=prompts.lengths, known=known)
