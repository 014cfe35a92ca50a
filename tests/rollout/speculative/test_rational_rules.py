"""The rules as published, in fractions: every draft, coin and draw; the law is the target's exactly, not to some digits."""

from __future__ import annotations

from functools import partial

import pytest

from testbed.rollout.speculative.verify import expected
from tests.rollout.speculative import rational
from tests.rollout.speculative.rational import KINDS, World

slow = pytest.mark.slow
CHAINS = [(V, length) for V in (2, 3, 4) for length in (1, 2, 3, 4)]
LONG_CHAINS = [(3, 5), (4, 5), (2, 7)]
TREES = [(2, (2,)), (3, (2,)), (4, (3,)), (3, (4,)), (2, (2, 2)), (3, (2, 1)), (3, (1, 2)), (3, (2, 2)), (2, (2, 2, 1))]
LARGE_TREES = [(4, (2, 2)), (3, (3, 2)), (2, (1, 2, 2)), (2, (2, 2, 2)), (3, (1, 1, 2))]
chains = pytest.mark.parametrize(("V", "length"), [*CHAINS, *[pytest.param(*c, marks=slow) for c in LONG_CHAINS]])
trees = pytest.mark.parametrize(("V", "branching"), [*TREES, *[pytest.param(*t, marks=slow) for t in LARGE_TREES]])
kinds = pytest.mark.parametrize("kind", KINDS)


def exact(emitted, world, length):
    assert sum(emitted.values()) == 1
    assert rational.completed(emitted, world, length) == rational.target_law(world, length)


@kinds
@chains
def test_chains(V, length, kind, rng):
    world = World(V, length + 1, rng, kind)
    token = rational.walk(partial(rational.token_rejection, world, length))
    block = rational.walk(partial(rational.block, world, length))
    exact(token, world, length + 1)
    exact(block, world, length + 1)
    assert rational.mean_accepted(token) == expected.token_chain(world.target, world.drafter, length)
    assert rational.mean_accepted(block) == expected.block_chain(world.target, world.drafter, length)
    for least in range(1, length + 1):  # not only on average
        assert accepted_at_least(block, least) >= accepted_at_least(token, least)


@kinds
@chains
def test_on_a_chain_traversal_is_the_block_rule(V, length, kind, rng):
    world = World(V, length + 1, rng, kind)
    ones = (1,) * length
    traversal = rational.walk(lambda choose: rational.traversal(world, ones, choose, distinct=False))
    block = rational.walk(partial(rational.block, world, length))
    assert {k: v for k, v in traversal.items() if v} == {k: v for k, v in block.items() if v}
    assert expected.leaf_to_root(world.target, world.drafter, ones) == rational.mean_accepted(block)


@pytest.mark.parametrize("distinct", [False, True])
@kinds
@trees
def test_drawn_trees(V, branching, kind, distinct, rng):
    world = World(V, len(branching) + 1, rng, kind)
    laws = world.target, world.drafter
    rounds = rational.walk(lambda choose: rational.rounds(world, branching, choose, distinct))
    exact(rounds, world, len(branching) + 1)
    assert rational.mean_accepted(rounds) == expected.child_by_child(*laws, branching, (), distinct)
    traversal = rational.walk(lambda choose: rational.traversal(world, branching, choose, distinct))
    exact(traversal, world, len(branching) + 1)
    assert rational.mean_accepted(traversal) == expected.leaf_to_root(*laws, branching, distinct)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("V", [2, 3, 4])
def test_trees_that_were_not_drawn(V, depth, rng):
    world = World(V, depth + 1, rng)
    tree = rational.random_tree(world, rng, depth)
    walked = rational.walk(partial(rational.membership, world, tree))
    tried = rational.walk(partial(rational.point_mass, world, tree))
    exact(walked, world, depth + 1)
    assert walked == tried  # run by run, not only in the law of the response
    assert rational.mean_accepted(walked) == expected.path_probabilities(world.target, *rational.flattened(tree))


def accepted_at_least(emitted, least):
    return sum(chance for run, chance in emitted.items() if len(run) > least)


def test_an_inexact_rule_is_noticed(rng):
    world = World(3, 2, rng, "positive")
    while world.p[()] == world.q[()]:
        world = World(3, 2, rng, "positive")

    def from_the_target(choose):
        p, q = world.p[()], world.q[()]
        x = choose(q)
        return (x, choose(world.p[(x,)])) if rational.heads(choose, min(1, p[x] / q[x])) else (choose(p),)

    with pytest.raises(AssertionError):
        exact(rational.walk(from_the_target), world, 2)
