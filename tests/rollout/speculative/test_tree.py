"""Draft trees: closed under parents at every tie, greedy against brute force, and refusing what is no tree."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.rollout.speculative.tree import DraftTree, RankPaths, largest, largest_of_all


def laws_of(seed, rows=3, levels=3, vocab_size=4, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, levels, vocab_size, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1)


def saturated(rows=2):
    """Laws whose leading token has probability 1 in floating point, and whose others are equal: ties everywhere."""
    logits = torch.zeros(rows, 3, 4, dtype=torch.float64)
    logits[..., 2] = 800.0
    return logits.log_softmax(-1)


@given(st.integers(0, 10**6), st.integers(0, 45), st.sampled_from([0.0, 0.5, 3.0, 40.0]))
def test_the_largest_weights_form_a_tree(seed, nodes, scale):
    tree = largest(RankPaths.product((4, 3, 2)).drafted(laws_of(seed, scale=scale)), nodes)
    assert tree.problem() == "" and tree.nodes == min(nodes, 40)


@pytest.mark.parametrize("nodes", range(41))
def test_saturated_laws_leave_no_orphans(nodes):
    tree = largest(RankPaths.product((4, 3, 2)).drafted(saturated()), nodes)
    assert tree.problem() == ""


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_no_set_of_nodes_weighs_more(seed, nodes):
    whole = RankPaths.product((2, 2)).drafted(laws_of(seed, rows=1, levels=2))
    chosen = float(largest(whole, nodes).log_weight.exp().sum())
    weight = whole.log_weight[0].exp().tolist()
    assert chosen >= max(sum(some) for some in combinations(weight, nodes)) - 1e-12


@given(st.integers(0, 10**6), st.integers(0, 20), st.sampled_from([0.0, 2.0, 40.0]))
def test_a_pooled_budget_gives_trees_of_the_largest_weights(seed, total, scale):
    whole = RankPaths.product((2, 2)).drafted(laws_of(seed, rows=3, levels=2, scale=scale))
    tree = largest_of_all(whole, total)
    weight = whole.log_weight.exp().flatten().sort(descending=True).values
    kept = tree.tokens >= 0
    assert tree.problem() == "" and int(kept.sum()) == min(total, 18)
    assert abs(float(tree.log_weight.exp()[kept].sum() - weight[:total].sum())) < 1e-12


def test_weights_are_products_along_the_path():
    laws = laws_of(1, rows=2)
    paths = RankPaths.product((2, 2, 2))
    tree = paths.drafted(laws)
    best, token = torch.sort(laws, dim=-1, descending=True, stable=True)
    for place, ranks in enumerate(paths.ranks()):
        expected = sum(best[:, k, r] for k, r in enumerate(ranks))
        assert torch.allclose(tree.log_weight[:, place], expected, rtol=0, atol=1e-12)
        assert torch.equal(tree.tokens[:, place], token[:, len(ranks) - 1, ranks[-1]])


def test_ancestors_are_the_path_to_the_root():
    tree = largest(RankPaths.product((3, 2, 2)).drafted(laws_of(4)), 9)
    for row in range(3):
        for place in range(tree.nodes):
            path, at = {0, place + 1}, place
            while int(tree.parent[row, at]) >= 0:
                at = int(tree.parent[row, at])
                path.add(at + 1)
            assert set(torch.nonzero(tree.ancestors()[row, place + 1])[:, 0].tolist()) == path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parent": [[-1, 1, 0]]}, "before its child"),
        ({"tokens": [[-1, 1, 2]]}, "empty place"),
        ({"depth": [[1, 2, 2]]}, "plus one"),
        ({"levels": 1}, "deeper"),
        ({"log_weight": [[-1.0, -1.0, -0.5]]}, "weight"),
        ({"tokens": [[3, -1, 2]]}, "behind"),
        ({"tokens": [[3, 3, 2]]}, "siblings"),
    ],
)
def test_what_is_wrong_with_a_tree_is_said(change, says):
    parts = {
        "tokens": [[3, 1, 2]], "parent": [[-1, -1, 0]], "depth": [[1, 1, 2]], "log_weight": [[-1.0, -1.0, -2.0]],
    }  # fmt: skip
    levels = change.pop("levels", 2)
    good = DraftTree(levels=2, **{name: torch.tensor(x) for name, x in parts.items()})
    bad = DraftTree(levels=levels, **{name: torch.tensor(x) for name, x in (parts | change).items()})
    assert good.problem() == "" and says in bad.problem()


def test_paths_that_are_no_tree_are_refused():
    for ranks in ([], [()], [(0,), (0,)], [(-1,)], [(0, 0)], [(0, 0), (0,)]):
        with pytest.raises(InputError):
            RankPaths.of(ranks)
    with pytest.raises(InputError, match="fan_out"):
        RankPaths.product((2, 0))
    with pytest.raises(InputError, match="vocabulary"):
        RankPaths.product((5,)).drafted(laws_of(0))
    with pytest.raises(InputError, match="as many laws"):
        RankPaths.product((1, 1, 1, 1)).drafted(laws_of(0))


def test_tensors_of_different_shapes_are_refused(untyped):
    whole, part = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(InputError, match="parent"):
        DraftTree(tokens=whole, parent=part, depth=whole, log_weight=whole.double(), levels=1)
