"""The library's verifiers, every draw enumerated, against the target's law, the rules in fractions, and the expected lengths."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from testbed.core.choices import ReplayChooser
from testbed.rollout.speculative.verify import expected
from testbed.rollout.speculative.verify.enumeration import Drafts, all_drafts, one_draft, round_law
from testbed.rollout.speculative.verify.protocol import EMPTY
from testbed.rollout.speculative.verify.registry import VERIFIERS, verify
from tests.rollout.speculative import rational
from tests.rollout.speculative.rational import KINDS, World

slow = pytest.mark.slow
CHAINS = [(2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (2, 3), (4, 3), (3, 4)]
TREES = [(2, (2,)), (4, (2,)), (3, (4,)), (2, (2, 2)), (3, (2, 1)), (3, (1, 2)), (3, (2, 2)), (2, (2, 2, 1))]
chains = pytest.mark.parametrize(("V", "length"), [*CHAINS, *[pytest.param(*c, marks=slow) for c in [(4, 4), (2, 6)]]])
trees = pytest.mark.parametrize(
    ("V", "branching"), [*TREES, *[pytest.param(*t, marks=slow) for t in [(4, (2, 2)), (2, (3, 2))]]]
)
kinds = pytest.mark.parametrize("kind", KINDS)


def same(law, emitted):
    """A round's law is the one in fractions, run by run."""
    for run in {*law.emitted, *emitted}:
        assert law.emitted.get(run, 0.0) == pytest.approx(float(emitted.get(run, 0)), abs=1e-13), run


def exact(law, target, length):
    assert sum(law.emitted.values()) == pytest.approx(1.0, abs=1e-12)
    assert law.distance(target, length) < 1e-13


@kinds
@chains
def test_chains(V, length, kind, rng):
    world = World(V, length + 1, rng, kind)
    p, q = world.policies()
    drafts = all_drafts(p, q, (1,) * length)
    reference = {
        "token_rejection": rational.walk(partial(rational.token_rejection, world, length)),
        "block": rational.walk(partial(rational.block, world, length)),
    }
    found = {name: round_law(partial(verify, name), drafts) for name in reference}
    for name, law in found.items():
        exact(law, p, length + 1)
        same(law, reference[name])
        assert law.expected_accepted == pytest.approx(float(rational.mean_accepted(reference[name])), rel=1e-12)
    for least in range(1, length + 1):
        assert found["block"].at_least(least) >= found["token_rejection"].at_least(least) - 1e-13
    for name in ("traversal", "traversal_without_replacement"):  # of one child, drawn either way
        same(round_law(partial(verify, name), drafts), reference["block"])
    for name in ("specinfer", "sequoia"):
        same(round_law(partial(verify, name), drafts), reference["token_rejection"])


@pytest.mark.parametrize("distinct", [False, True])
@kinds
@trees
def test_drawn_trees(V, branching, kind, distinct, rng):
    world = World(V, len(branching) + 1, rng, kind)
    p, q = world.policies()
    drafts = all_drafts(p, q, branching, distinct=distinct)
    rounds = round_law(partial(verify, "sequoia" if distinct else "specinfer"), drafts)
    exact(rounds, p, len(branching) + 1)
    same(rounds, rational.walk(lambda choose: rational.rounds(world, branching, choose, distinct)))
    traversal = round_law(partial(verify, "traversal_without_replacement" if distinct else "traversal"), drafts)
    exact(traversal, p, len(branching) + 1)
    same(traversal, rational.walk(lambda choose: rational.traversal(world, branching, choose, distinct)))
    formula = expected.leaf_to_root(world.target, world.drafter, branching, distinct)
    assert traversal.expected_accepted == pytest.approx(float(formula), rel=1e-12)
    by_round = expected.child_by_child(world.target, world.drafter, branching, (), distinct)
    assert rounds.expected_accepted == pytest.approx(float(by_round), rel=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("V", [2, 3, 4])
def test_trees_that_were_not_drawn(V, depth, rng):
    world = World(V, depth + 1, rng)
    tree = rational.random_tree(world, rng, depth)
    tokens, parent = rational.flattened(tree)
    p, _ = world.policies()
    drafts = one_draft(p, tokens, parent)
    reference = rational.walk(partial(rational.membership, world, tree))
    for name in ("membership", "point_mass"):
        law = round_law(partial(verify, name), drafts)
        exact(law, p, depth + 1)
        same(law, reference)
    assert float(expected.path_probabilities(world.target, tokens, parent)) == pytest.approx(law.expected_accepted)


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_without_a_draft_a_round_is_one_draw(name, rng):
    p, q = World(3, 1, rng).policies()
    drafts = one_draft(p, [], [])
    drawn = replace(drafts.proposal, drafter=q.next_log_probs(torch.zeros(1, 0, dtype=torch.int64))[:, None])
    law = round_law(partial(verify, name), replace(drafts, proposal=drawn))
    exact(law, p, 1)
    assert law.expected_accepted == 0


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_two_rows_at_once_are_independent(name, rng):
    """Every joint choice of two rows: the pair's law is the product of the rows' laws."""
    p, q = World(2, 2, rng, "positive").policies()
    kind = VERIFIERS[name].drafts
    drafts = all_drafts(p, q, (1,) if kind == "chain" else (2,), distinct=kind == "distinct")
    pair = torch.tensor([0, len(drafts.chance) - 1])
    joint: dict = {}
    for runs, chance in ReplayChooser.walk(lambda c: tuple(verify(name, drafts.proposal.select(pair), c).emitted())):
        joint[runs] = joint.get(runs, 0.0) + chance
    assert sum(joint.values()) == pytest.approx(1.0)
    certain = torch.ones(1, dtype=torch.float64)
    first, second = (
        round_law(
            partial(verify, name), Drafts(proposal=replace(drafts.proposal.select(row), response=None), chance=certain)
        ).emitted
        for row in pair[:, None]
    )
    assert joint == pytest.approx({(a, b): first[a] * second[b] for a in first for b in second}, abs=1e-14)


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_rows_of_different_sizes_share_a_batch(name, rng):
    """Places that hold no node change nothing, wherever they stand."""
    p, q = World(3, 3, rng, "positive").policies()
    kind = VERIFIERS[name].drafts
    drafts = all_drafts(p, q, (1, 1) if kind == "chain" else (2, 1), distinct=kind == "distinct")
    proposal = drafts.proposal
    tokens = proposal.tokens.clone()
    tokens[:, -1] = EMPTY
    shorter = replace(proposal, tokens=tokens)
    bare = replace(
        proposal, tokens=tokens[:, :-1], parent=proposal.parent[:, :-1], target=proposal.target[:, :-1],
        drafter=proposal.drafter[:, :-1],
    )  # fmt: skip
    padded = round_law(partial(verify, name), replace(drafts, proposal=shorter))
    assert padded.emitted == pytest.approx(round_law(partial(verify, name), replace(drafts, proposal=bare)).emitted)
    full = round_law(partial(verify, name), drafts)
    assert full.expected_accepted > padded.expected_accepted
    exact(padded, p, 3)
