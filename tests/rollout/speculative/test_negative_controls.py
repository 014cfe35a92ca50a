"""What is reported as a bias and is none: a check that flags these is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from testbed.rollout.speculative.verify.enumeration import Drafts, all_drafts, one_draft, round_law
from testbed.rollout.speculative.verify.registry import verify
from tests.rollout.speculative.rational import World
from tests.rollout.speculative.toy import P, Q, constant, drafted_for

TARGET = constant(P)


@pytest.mark.parametrize("length", [1, 2])
def test_sampled_drafts_compared_with_a_sample_of_the_target(length):
    """Exact as long as the sample that did not match is emitted; it accepts less than the ratio would."""
    drafts = drafted_for("chain", length)
    matched, ratio = (round_law(partial(verify, rule), drafts) for rule in ("membership", "token_rejection"))
    assert matched.distance(TARGET, length + 1) < 1e-14
    hit = float(sum(p * q for p, q in zip(P, Q, strict=True)))
    assert matched.expected_accepted == pytest.approx(sum(hit**i for i in range(1, length + 1)), rel=1e-12)
    assert matched.expected_accepted < ratio.expected_accepted


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_k_best_tokens_with_q_set_to_1(k):
    best = sorted(range(4), key=lambda x: Q[x], reverse=True)[:k]
    law = round_law(partial(verify, "point_mass"), one_draft(TARGET, best, [-1] * k))
    assert law.distance(TARGET, 2) < 1e-14
    assert law.expected_accepted == pytest.approx(float(sum(P[x] for x in best)), rel=1e-12)


def test_the_argmax_with_its_own_one_hot_law():
    drafts = drafted_for("argmax", 2)
    sure = torch.full_like(drafts.proposal.drafter, -torch.inf)
    sure[:, :, 3] = 0.0
    honest = Drafts(proposal=replace(drafts.proposal, drafter=sure), chance=drafts.chance)
    for rule in ("token_rejection", "block", "traversal"):
        assert round_law(partial(verify, rule), honest).distance(TARGET, 3) < 1e-14


@pytest.mark.parametrize("branching", [(1,), (2,), (1, 1)])
def test_a_drawn_draft_whose_law_was_not_kept(branching, rng):
    """Treated as a point mass: exact for every drafter that does not see the coins, and slower."""
    p, q = World(3, len(branching) + 1, rng, "positive").policies()
    drafts = all_drafts(p, q, branching)
    forgotten = replace(drafts, proposal=replace(drafts.proposal, drafter=None))
    law = round_law(partial(verify, "point_mass"), forgotten)
    assert law.distance(p, len(branching) + 1) < 1e-14
    assert law.expected_accepted <= round_law(partial(verify, "specinfer"), drafts).expected_accepted + 1e-12
