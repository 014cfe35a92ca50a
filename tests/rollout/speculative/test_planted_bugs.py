"""Bugs planted in the library's own functions: the distance to the target that decides about rules sees each of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from testbed import TabularPolicy
from testbed.rollout.speculative import walk
from testbed.rollout.speculative.verify import block, laws, point_mass, rounds, sequoia, specinfer, token_rejection
from testbed.rollout.speculative.verify import traversal as traversal_rule
from testbed.rollout.speculative.verify.enumeration import all_drafts, one_draft, round_law
from testbed.rollout.speculative.verify.protocol import Proposal
from testbed.rollout.speculative.verify.registry import VERIFIERS, verify


def shares_swapped(right):
    return lambda p, q, token: right(q, p, token)


def half_as_likely(right):
    return lambda *args: right(*args) / 2


def not_subtracted(right):
    return lambda p, q, share=None: (p, right(p, q, share)[1])


def share_ignored(right):
    return lambda p, q, share=None: right(p, q)


def nothing_removed(right):
    return lambda law, token: law


def ended_never(right):
    return lambda proposal, accepted: torch.zeros_like(accepted, dtype=torch.bool)


def token_coins(right):
    return lambda proposal, joint, p, q: torch.cat(
        [torch.ones_like(joint[:, :1]), token_rejection.chances(p, q, proposal.tokens)], 1
    )


def left_as_it_was(right):
    return lambda a, p, q, token, distinct: (a, *right(a, p, q, token, distinct)[1:])


def parent_ignored(right):
    def wrong(tree, at, token):
        holds = tree.tokens == token[:, None]
        return holds & (torch.arange(holds.shape[1]) > at[:, None] - 1)

    return wrong


def siblings_reversed(right):
    """The rule tries the last child of a node first: it is given the places in that order."""

    def wrong(proposal, *args, **options):
        depth, parent = proposal.depth[0].tolist(), proposal.parent[0].tolist()
        order = sorted(range(len(depth)), key=lambda place: (depth[place], -place))
        table = torch.tensor([0, *[place + 1 for place in order]])
        turned = Proposal(
            tokens=proposal.tokens[:, order],
            parent=torch.tensor([order.index(parent[place]) if parent[place] >= 0 else -1 for place in order]),
            target=proposal.target[:, table],
            drafter=proposal.drafter[:, table],
            response=proposal.response,
        )
        return right(turned, *args, **options)

    return wrong


def roots_first(right):
    return lambda proposal: torch.arange(proposal.tokens.shape[1]).expand_as(proposal.tokens)


PLANTED = [
    (walk, "children_holding", parent_ignored, ("membership",)),
    (rounds, "try_children", siblings_reversed, ("sequoia",)),
    (traversal_rule, "traversal", siblings_reversed, ("traversal_without_replacement",)),
    (traversal_rule, "leaves_first", roots_first, ("traversal", "traversal_without_replacement")),
    (laws, "acceptance", shares_swapped, ("token_rejection", "specinfer", "sequoia", "traversal")),
    (laws, "acceptance", half_as_likely, ("token_rejection", "specinfer", "sequoia", "traversal")),
    (laws, "residual", not_subtracted, ("token_rejection", "block", "specinfer", "sequoia", "traversal")),
    (laws, "residual", share_ignored, ("block", "traversal", "traversal_without_replacement")),
    (laws, "without", nothing_removed, ("point_mass", "sequoia", "traversal_without_replacement")),
    (token_rejection, "ended", ended_never, ("token_rejection", "block")),
    (block, "successes", token_coins, ("block",)),
    (block, "joint_acceptance", half_as_likely, ("block",)),
    (traversal_rule, "rejected", left_as_it_was, ("traversal", "traversal_without_replacement")),
    (point_mass, "chance", half_as_likely, ("point_mass",)),
]
USERS = (walk, laws, point_mass, token_rejection, block, specinfer, sequoia, traversal_rule, rounds)


@pytest.mark.parametrize(
    ("owner", "name", "make", "rule"),
    [(owner, name, make, rule) for owner, name, make, rules in PLANTED for rule in rules],
    ids=lambda value: getattr(value, "__name__", str(value)).rsplit(".", 1)[-1],
)
def test_a_planted_bug_is_noticed(owner, name, make, rule, monkeypatch):
    wrong = make(getattr(owner, name))
    right = getattr(owner, name)
    for module in USERS:
        if getattr(module, name, None) is right:
            monkeypatch.setattr(module, name, wrong)
    assert distances(rule) > 1e-3


@pytest.mark.parametrize("rule", list(VERIFIERS))
def test_without_a_bug_nothing_is_noticed(rule):
    assert distances(rule) < 1e-13


def distances(rule):
    """Largest distance of a rule from the target, over one and two levels, with laws that change along the draft."""
    found = []
    p, q = prefix_dependent()
    drafts = VERIFIERS[rule].drafts
    for branching in [(1,), (1, 1), (1, 1, 1)] if drafts == "chain" else [(2,), (2, 1)]:
        if drafts == "any":
            all_of = one_draft(p, [0, 2, 1][: len(branching) + 1], [-1, -1, 0][: len(branching) + 1])
        else:
            all_of = all_drafts(p, q, branching, distinct=drafts == "distinct")
            all_of = replace(all_of, proposal=continued(all_of.proposal))
        law = round_law(partial(verify, rule), all_of)
        found.append(law.distance(p, len(branching) + 1) + abs(sum(law.emitted.values()) - 1))
    return max(found)


def continued(proposal):
    """The same draft with some drafter's law after leaves, too, as engines have it."""
    ended = torch.isneginf(proposal.drafter).all(2, keepdim=True)
    return replace(proposal, drafter=torch.where(ended, proposal.drafter[:, :1], proposal.drafter))


def prefix_dependent():
    """Other laws over three tokens after every prefix."""
    tables = []
    for step in (1, 3):
        rows = [[1 + (step * i + j * (i + step)) % 5 for j in range(3)] for i in range(1 + 3 + 9 + 27)]
        weights = torch.tensor(rows, dtype=torch.float64)
        tables.append(weights / weights.sum(1, keepdim=True))
    return TabularPolicy.from_probs(tables[0]), TabularPolicy.from_probs(tables[1])
