"""The exact law of one round: every draft a drafter can make, every coin and draw of a verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser, ReplayChooser
from testbed.core.prefix_order import leaf_index
from testbed.core.row_replay import walk_rows
from testbed.policies.base import Policy
from testbed.rollout.speculative.verify.drawing import DrawnDraft, draw_draft, proposal_of
from testbed.rollout.speculative.verify.protocol import Proposal, Verifier


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Every draft of a drafter at the start of a response, as rows of one proposal.

    proposal   Proposal of R rows, one per draft
    chance     [R] probability of each
    """

    proposal: Proposal
    chance: Float[Tensor, " R"]


def all_drafts(target: Policy, drafter: Policy, branching: Sequence[int], *, distinct: bool = False) -> Drafts:
    """Every tree that `draw_draft` can draw behind an empty prefix, with the laws at its nodes.

    Parameters
    ----------
    target, drafter : Policy        with laws after every prefix of up to len(branching) tokens
    branching : sequence of int     children per node at depth 0, 1, ...
    distinct : bool                 siblings without replacement

    Examples
    --------
    >>> from testbed import TabularPolicy
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> all_drafts(pi, pi, (2,)).chance
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    empty = torch.zeros(1, 0, dtype=torch.int64)

    def draft(chooser: Chooser) -> DrawnDraft:
        return draw_draft(drafter, empty, branching, chooser, distinct=distinct)

    drawn = ReplayChooser.walk(draft)
    tokens = torch.cat([d.tokens for d, _ in drawn])
    laws = torch.cat([d.drafter for d, _ in drawn])
    proposal = proposal_of(target, empty.expand(len(drawn), 0), tokens, drawn[0][0].parent, laws)
    return Drafts(proposal=proposal, chance=torch.tensor([chance for _, chance in drawn], dtype=torch.float64))


def one_draft(target: Policy, tokens: Sequence[int], parent: Sequence[int]) -> Drafts:
    """Return a single tree, chosen rather than drawn, behind an empty prefix."""
    empty = torch.zeros(1, 0, dtype=torch.int64)
    shape = torch.tensor(parent, dtype=torch.int64)
    proposal = proposal_of(target, empty, torch.tensor([tokens], dtype=torch.int64), shape)
    return Drafts(proposal=proposal, chance=torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class RoundLaw:
    """Law of what one round emits.

    Parameters
    ----------
    emitted : dict tokens -> probability     runs of one token or more; all but the last were drafted
    """

    emitted: dict[tuple[int, ...], float]

    @cached_property
    def expected_accepted(self) -> float:
        """Expected number of accepted tokens."""
        return sum(((len(run) - 1) * chance for run, chance in self.emitted.items()), 0.0)

    def at_least(self, length: int) -> float:
        """Probability of accepting at least so many tokens."""
        return sum((chance for run, chance in self.emitted.items() if len(run) > length), 0.0)

    def completed(self, target: Policy, length: int) -> Float[Tensor, " L"]:
        """Law of the first `length` tokens when the target goes on alone after the round, in lexicographic order.

        A rule is exact iff this is the target's own law, for a length that covers every run.
        """
        responses = every_response(target.vocab_size, length)
        steps = _steps(target, responses)
        law = torch.zeros(len(responses), dtype=torch.float64)
        for run, chance in self.emitted.items():
            cut = run[:length]
            after = steps[:, len(cut) :].prod(1)
            begins = (responses[:, : len(cut)] == torch.tensor(cut)).all(1)
            law += chance * torch.where(begins, after, 0.0)
        return law

    def distance(self, target: Policy, length: int) -> float:
        """Total variation between what is emitted and the target's law, over the first `length` tokens."""
        return float((self.completed(target, length) - response_law(target, length)).abs().sum()) / 2


def round_law(rule: Verifier, drafts: Drafts) -> RoundLaw:
    """Exact law of what a rule emits, over all drafts and all its own draws.

    Parameters
    ----------
    rule : (Proposal, Chooser) -> Verified
    drafts : Drafts

    Returns
    -------
    RoundLaw

    Examples
    --------
    >>> from testbed import TabularPolicy
    >>> from testbed.rollout.speculative.verify.token_rejection import token_rejection
    >>> p = TabularPolicy.from_probs(torch.tensor([[0.4, 0.6]] * 3))
    >>> q = TabularPolicy.from_probs(torch.tensor([[0.8, 0.2]] * 3))
    >>> law = round_law(token_rejection, all_drafts(p, q, (1,)))
    >>> round(law.expected_accepted, 6), round(law.distance(p, 2), 6)  # 1 - TV(p, q), and exact
    (0.6, 0.0)
    """
    proposal = drafts.proposal

    def settle(chooser: Chooser, rows: Int64[Tensor, " b"]) -> list[tuple[int, ...]]:
        return rule(proposal.select(rows), chooser).emitted()

    emitted: dict[tuple[int, ...], float] = {}
    for outcomes, chance in zip(walk_rows(settle, len(drafts.chance)), drafts.chance.tolist(), strict=True):
        for run, probability in outcomes:
            emitted[run] = emitted.get(run, 0.0) + chance * probability
    return RoundLaw(emitted=emitted)


def response_law(target: Policy, length: int) -> Float[Tensor, " L"]:
    """The target's law of its first `length` tokens, in lexicographic order."""
    return _steps(target, every_response(target.vocab_size, length)).prod(1)


def every_response(vocab_size: int, length: int) -> Int64[Tensor, "L T"]:
    """All responses of this length, in lexicographic order."""
    tokens = torch.cartesian_prod(*[torch.arange(vocab_size)] * length).reshape(-1, length)
    assert torch.equal(leaf_index(tokens, vocab_size), torch.arange(len(tokens)))
    return tokens


def _steps(target: Policy, responses: Int64[Tensor, "L T"]) -> Float[Tensor, "L T"]:
    return target.score(responses).double().exp()
