"""The pair of laws at which every wrong rule has a known distance: p = (.4, .3, .2, .1), q the other way around."""

from __future__ import annotations

from fractions import Fraction

import torch

from testbed import TabularPolicy
from testbed.rollout.speculative import specimens
from testbed.rollout.speculative.verify.drawing import DrawnDraft, proposal_of
from testbed.rollout.speculative.verify.enumeration import Drafts, all_drafts, one_draft

P = [Fraction(n, 10) for n in (4, 3, 2, 1)]
Q = P[::-1]
EMPTY = torch.zeros(1, 0, dtype=torch.int64)


def constant(law, horizon: int = 3) -> TabularPolicy:
    """The same law after every prefix."""
    row = torch.tensor([float(x) for x in law], dtype=torch.float64)
    return TabularPolicy.from_probs(row.repeat(sum(len(law) ** t for t in range(horizon)), 1))


def misstated(drawn_from, stated, target=P) -> Drafts:
    """One drafted token, drawn from one law and verified as if it came from another."""
    drafts = all_drafts(constant(target), constant(drawn_from), (1,))
    claimed = torch.tensor([float(x) for x in stated], dtype=torch.float64).log()
    laws = drafts.proposal.drafter.clone()
    laws[:, 0] = claimed
    proposal = type(drafts.proposal)(
        tokens=drafts.proposal.tokens, parent=drafts.proposal.parent, target=drafts.proposal.target, drafter=laws
    )
    return Drafts(proposal=proposal, chance=drafts.chance)


def drafted_for(kind: str, length: int = 1, tree=(0, 3)) -> Drafts:
    """Drafts of a kind, on the pair: two children for trees."""
    p, q = constant(P), constant(Q)
    if kind == "any":
        return one_draft(p, list(tree), [-1] * len(tree))
    if kind == "argmax":
        draft: DrawnDraft = specimens.argmax_draft(q, EMPTY, length)
        proposal = proposal_of(p, EMPTY, draft.tokens, draft.parent, draft.drafter)
        return Drafts(proposal=proposal, chance=torch.ones(1, dtype=torch.float64))
    if kind == "chain":
        return all_drafts(p, q, (1,) * length)
    return all_drafts(p, q, (2,) + (1,) * (length - 1), distinct=kind == "distinct")


def share(a, b):
    """Sum of the smaller."""
    return sum(map(min, a, b))


def tv(a, b):
    """Total variation."""
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2
