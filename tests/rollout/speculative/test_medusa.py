"""Fixed trees from measured accuracies: counted by hand, and greedy against every tree of as many nodes."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.rollout import rollout
from testbed.rollout.speculative import FutureHeads, HeadDrafter, rank_accuracies, speculative_rollout, static_layout
from tests.rollout.speculative.worlds import (
    GROUP,
    NOISE,
    ROWS,
    Letters,
    env_of,
    heads_of,
    layout_of,
    lessons_of,
    policy_of,
    tiny,
)


def weight_of(accuracies, path):
    out = 1.0
    for head, rank in enumerate(path):
        out *= float(accuracies[head, rank])
    return out


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([(2, 2), (1, 4), (3, 1)]))
def test_no_tree_of_as_many_nodes_has_larger_weights(seed, nodes, shape):
    heads, ranks = shape
    paths = [path for depth in range(1, heads + 1) for path in product(range(ranks), repeat=depth)]
    nodes = min(nodes, len(paths))
    draw = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    accuracies = draw / draw.sum(1, keepdim=True).clamp(min=1.0)
    chosen = static_layout(accuracies, nodes).ranks()
    assert len(set(chosen)) == nodes
    trees = [
        some for some in combinations(paths, nodes) if all(len(path) == 1 or path[:-1] in some for path in some)
    ]  # fmt: skip
    best = max(sum(weight_of(accuracies, path) for path in some) for some in trees)
    assert abs(sum(weight_of(accuracies, path) for path in chosen) - best) < 1e-12


@given(st.integers(0, 10**6))
def test_the_leading_paths_are_the_smaller_layouts(seed):
    draw = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    accuracies = draw / draw.sum(1, keepdim=True)
    whole = static_layout(accuracies, 39).ranks()
    weights = [weight_of(accuracies, path) for path in whole]
    assert weights == sorted(weights, reverse=True)
    assert all(static_layout(accuracies, n).ranks() == whole[:n] for n in (1, 2, 7, 20))


def test_equal_weights_go_to_the_shorter_path():
    assert static_layout(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), 4).ranks() == [(0,), (1,), (0, 0), (1, 0)]
    assert static_layout(torch.zeros(2, 2), 6).ranks()[:2] == [(0,), (1,)]


def test_accuracies_are_counts_of_right_guesses():
    policy = policy_of("dense")
    batch = rollout(Letters(7, 10, 6), policy, 30, KeyedChooser(9), group=torch.arange(30) % 5)
    heads = heads_of("dense")
    found = rank_accuracies(heads, policy, batch, 7)
    right, real = torch.zeros(3, 7), torch.zeros(3)
    with torch.no_grad():
        laws = heads.log_laws(policy.at(batch.group).hidden_states(batch.tokens), policy.weights())
    for row, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            for k in range(3):
                if t + k + 1 < length:
                    order = sorted(range(7), key=lambda v: -float(laws[row, t, k, v]))
                    right[k, order.index(int(batch.tokens[row, t + k + 1]))] += 1
                    real[k] += 1
    assert torch.allclose(found, (right / real[:, None]).double(), rtol=0, atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.float64)) and float(found[0, 0]) > 0.5
    assert torch.equal(rank_accuracies(heads, policy, batch, 2), found[:, :2])


def test_every_round_checks_the_layout_that_was_measured():
    rounds = []
    drafter = HeadDrafter(heads_of("dense"), layout=layout_of("dense"))
    speculative_rollout(
        env_of("none"), policy_of("dense"), ROWS, NOISE, drafter=drafter, nodes=8, group=GROUP, watch=rounds.append
    )
    layout = layout_of("dense")
    assert len(layout.ranks()) == 8 and layout.levels > 1
    for finished in rounds:
        assert finished.tree.parent.tolist() == [[int(x) for x in layout.parent]] * len(finished.frontier.rows)
    accuracies = rank_accuracies(heads_of("dense"), policy_of("dense"), lessons_of("dense"), 4)
    assert layout.ranks() == static_layout(accuracies, 8).ranks()


def test_bad_numbers_are_refused(untyped):
    for wrong in (torch.zeros(2), torch.zeros(0, 2), torch.tensor([[0.7, 0.4]]), torch.tensor([[-0.1, 0.4]])):
        with pytest.raises(InputError, match="accuracies"):
            static_layout(wrong, 1)
    for nodes in (0, 7):
        with pytest.raises(InputError, match="nodes"):
            static_layout(torch.full((2, 2), 0.5), nodes)
    batch = rollout(Letters(3, 4), tiny(3), 4, KeyedChooser(0))
    for ranks in (0, 4):
        with pytest.raises(InputError, match="ranks"):
            rank_accuracies(FutureHeads.of(tiny(3)), tiny(3), batch, ranks)
