"""Engines that are right about every token and wrong about the group, kept to be recognized: each runs like the right one.

Every token has the target's law given what stands before it, and every recorded ratio is what it should be. What is wrong
shows in the joint law of a group, in the law of its lengths, or in which advantage meets which response: in the expected
group gradient (V11), not in a test of single responses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.speculative.budget import Budget
from testbed.rollout.speculative.drafters import Drafter
from testbed.rollout.speculative.engine import grown
from testbed.rollout.speculative.responses import Responses
from testbed.rollout.speculative.rounds import Round
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.walk import Draws, Run, membership_walk


class SharedFirstToken(Responses):
    """The first token is drawn once per prompt, for the first of its responses, and copied to the others.

    Every response alone has the target's law. The first tokens of two responses to one prompt are equal: their pair law is at
    total variation 1 - sum_v p(v)^2 from the product, and with a group's mean as baseline their part of the gradient is 0.
    """

    def first_run(self, tree: DraftTree, log_probs: Float[Tensor, "b 1 V"]) -> Run:
        """Draw for one response of each prompt."""
        prompt, member = torch.unique(self.group.to(self.rows.device)[self.rows], return_inverse=True)
        place = torch.arange(self.active, device=self.rows.device)
        first = torch.full_like(prompt, self.active).scatter_reduce(0, member, place, "amin")
        every = self.draws()
        draws = Draws(
            chooser=every.chooser,
            rows=every.rows[first],
            position=every.position[first],
            remaining=every.remaining[first],
            eos=every.eos,
        )
        run = membership_walk(DraftTree.none(len(first), first.device), log_probs[first], draws)
        return Run(tokens=run.tokens[member], path=run.path[member], accepted=run.accepted[member])


class WholeBatchStop(Responses):
    """All responses end with the round in which one of them reaches its cap; what that round accepted is kept, up to the caps.

    Without drafts and with one cap nothing happens: all reach it together. With drafts, a response is cut where the luckiest of
    its batch had it cut, and rewarded as it stands.
    """

    def goes_on(self, last: Int64[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Nobody goes on once somebody has reached the cap."""
        return super().goes_on(last) & (self.position < self.most).all()


def rows_sorted(batch: SegmentedBatch) -> SegmentedBatch:
    """Sort responses by length, the longest first, and leave the rewards where they were.

        row i holds response order(i), and what was computed for row i before, its reward or advantage, still stands there

    Parameters
    ----------
    batch : SegmentedBatch    the rows of one update

    Returns
    -------
    SegmentedBatch   tokens, recorded log-probs and prompts of the sorted rows; `reward` of the old ones

    Assumes    an advantage per row, if any, was computed from the batch before, and is used as it is

    Examples
    --------
    >>> one = torch.tensor([[1, 0], [1, 1]])
    >>> batch = SegmentedBatch(tokens=one, mask=one > 0, segment=one * 0, logp_target=one * -1.0, logp_behavior=one * -1.0,
    ...     reward=torch.tensor([5.0, 7.0]), group=torch.tensor([0, 0]))
    >>> wrong = rows_sorted(batch)
    >>> wrong.lengths.tolist(), wrong.reward.tolist()
    ([2, 1], [5.0, 7.0])
    """
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    return batch.select(order).replaced(reward=batch.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpecimen:
    """What is wrong with an engine's groups, how it shows, and where it was seen.

    Parameters
    ----------
    wrong, shows, seen : str
    """

    wrong: str
    shows: str
    seen: str


GROUP_SPECIMENS: dict[str, GroupSpecimen] = {
    "shared_first_token": GroupSpecimen(
        wrong="the first token is drawn once per prompt and copied to all responses of its group",
        shows="pair law of first tokens: at total variation 1 - sum p^2 from independence; their gradient is 0",
        seen="a public copy of the code of FastGRPO (arXiv 2509.21792), `speculative_generate`",
    ),
    "whole_batch_stop": GroupSpecimen(
        wrong="the whole batch ends with the round in which its longest response reaches the cap",
        shows="law of lengths and of reasons to end: responses are cut that would have gone on",
        seen="the same function",
    ),
    "rows_sorted": GroupSpecimen(
        wrong="rows are sorted by length, their rewards and advantages are not",
        shows="the update changes when the rows of a batch change places",
        seen="the trainer of the same copy",
    ),
}


def group_specimen(name: object) -> GroupSpecimen:
    """Return the specimen of this name.

    Raises
    ------
    InputError   naming the nearest known names

    Examples
    --------
    >>> group_specimen("shared_first_token").wrong
    'the first token is drawn once per prompt and copied to all responses of its group'
    """
    if isinstance(name, str) and name in GROUP_SPECIMENS:
        return GROUP_SPECIMENS[name]
    near = difflib.get_close_matches(str(name), GROUP_SPECIMENS, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(GROUP_SPECIMENS)}"
    raise InputError("unknown specimen", found=repr(name), hint=hint)


def specimen_rollout(
    name: str,
    env: Environment,
    policy: Policy,
    n: int,
    chooser: Chooser,
    *,
    drafter: Drafter | None = None,
    nodes: int | Budget = 0,
    verifier: str = "membership",
    target: Policy | None = None,
    group: Int64[Tensor, " n"] | None = None,
    max_tokens: Int64[Tensor, " n"] | None = None,
    watch: Callable[[Round], None] | None = None,
) -> SegmentedBatch:
    """Draw n responses as `speculative_rollout` does, with one defect.

    Parameters
    ----------
    name : str      a key of GROUP_SPECIMENS
    the others      as in `speculative_rollout`

    Returns
    -------
    SegmentedBatch   as from `speculative_rollout`; nothing in it says that it is wrong

    Raises
    ------
    InputError   an unknown name, and what `speculative_rollout` raises

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi, env = TransformerPolicy(Transformer.random(config, seed=0)), PrefixTree(3, 2, rewards=[0.0] * 9)
    >>> specimen_rollout("shared_first_token", env, pi, 50, KeyedChooser(1)).tokens[:, 0].unique().numel()
    1
    """
    group_specimen(name)
    kind = {"shared_first_token": SharedFirstToken, "whole_batch_stop": WholeBatchStop}.get(name, Responses)
    batch = grown(
        kind, env, policy, n, chooser, drafter=drafter, nodes=nodes, verifier=verifier, target=target, group=group,
        max_tokens=max_tokens, watch=watch,
    )  # fmt: skip
    return rows_sorted(batch) if name == "rows_sorted" else batch
