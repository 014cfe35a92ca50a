"""Drafters propose what they say, and the engine refuses what it cannot draft for."""

import pytest
import torch

from testbed import KeyedChooser, RandomChooser, ReplayChooser, TabularPolicy
from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, TransformerPolicy
from testbed.rollout.speculative import (
    FixedBudget,
    FutureHeads,
    HeadDrafter,
    PromptLookup,
    RankPaths,
    speculative_rollout,
)
from testbed.rollout.speculative.sampled_trees import drawn_tree
from tests.rollout.speculative.worlds import FACTORS, GROUP, ROWS, Letters, V, drafter_of, policy_of, speculative, tiny


def looked_up(context, match, count):
    """The continuation of the latest earlier occurrence of the longest suffix of at most `match` tokens."""
    for length in range(min(match, len(context) - 1), 0, -1):
        for start in range(len(context) - length - 1, -1, -1):
            if context[start : start + length] == context[-length:]:
                found = context[start + length : start + length + count]
                return found + [-1] * (count - len(found))
    return [-1] * count


@pytest.mark.parametrize("match", [1, 2, 3])
def test_lookup_continues_the_latest_match(match):
    generator = torch.Generator().manual_seed(match)
    context = torch.randint(3, (200, 12), generator=generator)
    known = torch.randint(1, 13, (200,), generator=generator)
    tree = PromptLookup(longest=4, match=match).continuations(context, known, 4)
    expected = [looked_up(row[:n], match, 4) for row, n in zip(context.tolist(), known.tolist(), strict=True)]
    assert tree.tokens.tolist() == expected and tree.problem() == ""
    assert {-1} < set(tree.tokens[:, 0].tolist())


def test_every_drafter_gives_trees_of_the_size_asked_for():
    for name in FACTORS["drafter"][:-1]:  # all but the one that needs to be told the future
        rounds = []
        case = {"policy": "dense", "drafter": name, "budget": "5", "order": "given", "cap": "horizon", "eos": "six"}
        speculative(case, watch=rounds.append)
        assert all(r.tree.problem() == "" and r.tree.nodes <= 5 for r in rounds)


def test_a_fixed_layout_keeps_its_paths_in_every_row():
    rounds = []
    speculative(
        {"policy": "dense", "drafter": "static", "budget": "3", "order": "given", "cap": "horizon", "eos": "none"},
        watch=rounds.append,
    )
    for finished in rounds:
        assert finished.tree.parent.tolist() == [[-1, 0, -1]] * len(finished.frontier.rows)


@pytest.mark.parametrize("distinct", [False, True])
def test_drawn_trees_have_the_law_they_are_said_to_have(distinct):
    """Siblings by enumeration: independent draws, or draws from what the earlier siblings left."""
    q = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]], dtype=torch.float64)
    zero = torch.tensor([0])

    def run(chooser):
        tree, laws = drawn_tree(q.log(), (2, 1), 4, chooser, zero, zero, distinct=distinct)
        assert torch.allclose(laws.exp()[0], torch.stack([q[0, 0], q[0, 1], q[0, 1], q[0, 1], q[0, 1]]))
        assert tree.parent[0].tolist() == [-1, -1, 0, 1]
        return tuple(tree.tokens[0].tolist())

    for tokens, p in ReplayChooser.walk(run):
        a, b = q[0, 0].tolist(), q[0, 1].tolist()
        first, second = tokens[:2]
        expected = a[first] * (a[second] / (1 - a[first]) if distinct else a[second]) * b[tokens[2]] * b[tokens[3]]
        assert abs(p - expected) < 1e-12 and (first != second or not distinct)


def test_a_law_without_more_tokens_leaves_places_empty():
    q = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]]).log()
    zero = torch.tensor([0])
    tree, _ = drawn_tree(q, (2, 2), 6, RandomChooser(0), zero, zero, distinct=True)
    assert tree.tokens[0, :2].tolist() == [0, -1]
    assert sorted(tree.tokens[0, 2:4].tolist()) == [0, 1] and tree.tokens[0, 4:].tolist() == [-1, -1]


# ------------------------------------------------------------------------------------------------ refusals
def test_the_engine_refuses_what_it_cannot_do(untyped):
    env, policy, noise = Letters(3, 4, 2), tiny(3), KeyedChooser(0)
    drafter = HeadDrafter(FutureHeads.of(policy), (2, 2))

    def run(changed=env, by=policy, n=2, **options):
        return speculative_rollout(changed, by, n, noise, **options)

    with pytest.raises(InputError, match="`n`"):
        run(n=0)
    with pytest.raises(InputError, match="vocabulary"):
        run(Letters(4, 4))
    with pytest.raises(InputError, match="drafter"):
        run(nodes=2)
    with pytest.raises(InputError, match=">= 0"):
        run(nodes=-1)
    with pytest.raises(InputError, match="unknown verification rule"):
        run(drafter=drafter, nodes=2, verifier="typical")
    with pytest.raises(InputError, match="laws to draw from"):
        run(drafter=PromptLookup(), nodes=2, verifier="sequoia")
    with pytest.raises(InputError, match="TransformerPolicy"):
        run(by=TabularPolicy(torch.zeros(40, 3)))
    with pytest.raises(InputError, match="cached"):
        run(by=TransformerPolicy(policy.model, numerics=Numerics(cached=False)))
    with pytest.raises(InputError, match="positions"):
        run(Letters(3, 9))
    with pytest.raises(InputError, match="max_tokens"):
        run(max_tokens=torch.tensor([1, -1]))
    with pytest.raises(InputError, match="head"):
        HeadDrafter(FutureHeads.of(policy, 1), (2, 2))
    for bad in ({"longest": 0}, {"match": 0}, {"repeats": 0.0}):
        with pytest.raises(InputError):
            PromptLookup(**bad)


def test_a_target_scores_what_was_drawn():
    policy, other = policy_of("dense"), policy_of("mixture")
    drafter = drafter_of("greedy", "dense", None)
    batch = speculative_rollout(
        Letters(V, 6, 6),
        policy,
        ROWS,
        KeyedChooser(1),
        drafter=drafter,
        nodes=FixedBudget(4),
        target=other,
        group=GROUP,
    )
    with torch.no_grad():
        score = torch.where(batch.mask, other.at(GROUP).score(batch.tokens), 0.0)
    assert torch.allclose(batch.logp_target, score, rtol=0, atol=1e-12)
    assert not torch.equal(batch.logp_target, batch.logp_behavior)
    assert RankPaths.product((2,)).levels == 1


def test_no_response_may_have_a_token():
    batch = speculative_rollout(Letters(3, 4), tiny(3), 2, KeyedChooser(0), max_tokens=torch.tensor([0, 0]))
    assert batch.n_tokens == 0
