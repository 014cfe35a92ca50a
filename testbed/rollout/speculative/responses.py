"""The unfinished responses of a speculative rollout: their tokens so far, their caches, and a round of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.tree_decoder import TreeDecoder
from testbed.policies.truncated import Truncated
from testbed.rollout.speculative.drafters import Frontier, Opening
from testbed.rollout.speculative.rounds import Round
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verifiers import Draft, settled
from testbed.rollout.speculative.verify.registry import VerifierEntry
from testbed.rollout.speculative.walk import Draws, Run, membership_walk


class Responses:
    """Responses in the making; finished ones leave.

    Parameters
    ----------
    env : Environment
    policy : Policy                   a TransformerPolicy, or one seen through Truncated
    chooser : Chooser
    group, most : Int64[Tensor, " n"] prompt and cap of each response

    Raises
    ------
    InputError   another kind of policy, or caps that do not fit the model's context
    """

    def __init__(
        self, env: Environment, policy: Policy, chooser: Chooser, group: Int64[Tensor, " n"], most: Int64[Tensor, " n"]
    ) -> None:
        self.env, self.policy, self.chooser = env, policy, chooser
        self.filter = policy.filter if isinstance(policy, Truncated) else None
        inner = policy.policy if isinstance(policy, Truncated) else policy
        if not isinstance(inner, TransformerPolicy):
            found = type(inner).__name__
            raise InputError("speculation needs a TransformerPolicy, perhaps behind one Truncated", found=found)
        n, device = len(group), inner.model.device
        self.group = group
        self.rows = torch.nonzero(most > 0)[:, 0].to(device)
        self.most = most.to(device)[self.rows]
        self.position = torch.zeros_like(self.rows)
        self.out = torch.zeros(
            n, env.horizon + 1, dtype=torch.int64, device=device
        )  # the last column takes what is dropped
        self.log_prob = torch.zeros(n, env.horizon + 1, dtype=torch.float64, device=device)
        self.mask = torch.zeros(n, env.horizon + 1, dtype=torch.bool, device=device)
        self.gains: list[float] | None = None
        if not self.active:
            return
        self.decoder = TreeDecoder(inner, group[self.rows.cpu()], room=env.horizon + 1)
        prompts = self.decoder.prompts
        inner.require_room(int((self.decoder.length + self.most).max()) - 1)  # the last token is never fed
        room = torch.zeros(self.active, env.horizon + 1, dtype=torch.int64, device=device)
        self.context, self.known = torch.cat([prompts.tokens, room], 1), prompts.lengths

    @property
    def active(self) -> int:
        """Number of unfinished responses."""
        return len(self.rows)

    def frontier(self) -> Frontier:
        """Where they stand."""
        return Frontier(
            rows=self.rows,
            context=self.context[:, :-1],
            known=self.known,
            position=self.position,
            state=self.state,
            weights=self.decoder.weights,
            numerics=self.decoder.numerics,
            opening=self.opening,
            longest=self.decoder.longest + 1,
        )

    def draws(self) -> Draws:
        """Keys and ends of the next draws."""
        return Draws(
            chooser=self.chooser,
            rows=self.rows,
            position=self.position,
            remaining=self.most - self.position,
            eos=self.env.eos,
        )

    def start(self) -> None:
        """Pass over the prompts and draw every first token."""
        whole, prompts = self.decoder.opened(), self.decoder.prompts
        self.opening = Opening(rows=self.rows, context=prompts.tokens, known=prompts.lengths, states=whole)
        self.state = self.decoder.last(whole)
        states, tree = self.state[:, None], DraftTree.none(self.active, self.rows.device)
        log_probs = self._laws(states)
        run = self.first_run(tree, log_probs)
        self._settle(tree, states, log_probs, run, self.draws().emitted(run))

    def first_run(self, tree: DraftTree, log_probs: Float[Tensor, "b 1 V"]) -> Run:
        """Draw the first token of each response by itself."""
        return membership_walk(tree, log_probs, self.draws())

    def goes_on(self, last: Int64[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Whether each response goes on after its last token, for its own reasons."""
        return goes_on_after(last, self.position, self.most, self.env.eos)

    def round(self, draft: Draft, rule: VerifierEntry) -> Round:
        """Pass over roots and candidates, and keep what a rule makes of them."""
        frontier, draws, tree = self.frontier(), self.draws(), draft[0]
        root = self.context.gather(1, self.known[:, None] - 1)
        depth = torch.cat([torch.zeros_like(root), tree.depth], 1)
        states = self.decoder.extend(torch.cat([root, tree.tokens.clamp(min=0)], 1), depth, tree.ancestors())
        log_probs = self._laws(states)
        run = settled(rule, draft, log_probs, draws)
        emitted = draws.emitted(run)
        self.decoder.keep(run.path, run.accepted)
        self._settle(tree, states, log_probs, run, emitted)
        return Round(frontier=frontier, tree=tree, log_probs=log_probs, states=states, run=run, emitted=emitted)

    def recorded(self, target: Policy | None) -> SegmentedBatch:
        """Batch of all responses; `logp_target` is the sampled law's own unless a target scores them."""
        device = self.group.device
        tokens, mask, drawn = (x[:, :-1].to(device) for x in (self.out, self.mask, self.log_prob))
        tokens, drawn = torch.where(mask, tokens, 0), torch.where(mask, drawn, 0.0)
        score = drawn
        if target is not None:
            with torch.no_grad():
                score = torch.where(mask, target.at(self.group).score(tokens).to(drawn), 0.0)
        return SegmentedBatch(
            tokens=tokens,
            mask=mask,
            segment=torch.zeros_like(tokens),
            logp_target=score,
            logp_behavior=drawn,
            reward=self.env.reward(tokens, mask, self.group),
            group=self.group,
            token_reward=self.env.token_reward(tokens, mask, self.group),
        )

    def _laws(self, states: Float[Tensor, "b M d"]) -> Float[Tensor, "b M V"]:
        log_probs = self.decoder.laws(states)
        return log_probs if self.filter is None else self.filter(log_probs)

    def _settle(self, tree: DraftTree, states: Tensor, log_probs: Tensor, run: Run, emitted: Tensor) -> None:
        """Write down what was emitted, and let go of the responses that it finished."""
        tokens, place = run.tokens.clamp(min=0), run.places()
        step = torch.arange(tokens.shape[1], device=tokens.device)
        at = torch.where(emitted, self.position[:, None] + step, self.out.shape[1] - 1)
        rows = self.rows[:, None]
        self.out[rows, at] = tokens
        self.mask[rows, at] = emitted
        self.log_prob[rows, at] = log_probs[torch.arange(len(tokens), device=rows.device)[:, None], place, tokens]
        at = torch.where(emitted, self.known[:, None] + step, self.context.shape[1] - 1)
        self.context.scatter_(1, at, tokens)
        count = emitted.sum(1)
        self.position, self.known = self.position + count, self.known + count
        end = place.gather(1, run.accepted[:, None])[:, :, None].expand(-1, -1, states.shape[-1])
        self.state = states.gather(1, end)[:, 0]
        last = tokens.gather(1, count[:, None] - 1)[:, 0]
        goes_on = self.goes_on(last)
        report = torch.stack([goes_on.sum(), torch.where(goes_on, self.known, 1).max() - 1]).double()
        if tree.nodes:
            gains = torch.sort(tree.log_weight.exp(), 1, descending=True).values.mean(0).cumsum(0)
            report = torch.cat([report, gains.double()])
        active, longest, *reported = report.tolist()  # the round's one transfer
        self.gains = reported if tree.nodes else self.gains
        self._only(goes_on, int(active), int(longest))

    def _only(self, goes_on: Bool[Tensor, " b"], count: int, longest: int) -> None:
        """Go on with those that do; how many they are the host knows."""
        if count == self.active:
            self.decoder.longest = longest
            return
        rows = torch.sort((~goes_on).long(), stable=True).indices[:count]
        self.decoder.only(rows, longest)
        for name in ("rows", "most", "position", "context", "known", "state"):
            setattr(self, name, getattr(self, name)[rows])


def goes_on_after(
    token: Int64[Tensor, " b"], position: Int64[Tensor, " b"], most: Int64[Tensor, " b"], eos: int | None
) -> Bool[Tensor, " b"]:
    """Whether each response goes on: its last token is no end token, and its own cap is not reached.

    Examples
    --------
    >>> goes_on_after(torch.tensor([0, 1, 1]), torch.tensor([2, 2, 3]), torch.tensor([3, 3, 3]), eos=0)
    tensor([False,  True, False])
    """
    more = position < most
    return more if eos is None else more & (token != eos)
