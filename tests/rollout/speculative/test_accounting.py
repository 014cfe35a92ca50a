"""Hits against coverage: what the walk accepts is, in the mean, the target's mass on the candidates it met. Exactly."""

import pytest
import torch

from testbed import ReplayChooser
from testbed.rollout.speculative import FutureHeads, HeadDrafter, speculative_rollout
from tests.rollout.speculative.worlds import Letters, Scrambled, tiny


def moments(drafter, nodes):
    """Mean of S = sum(hit - coverage), mean of S^2, and mean of the summed conditional variances, over all choices."""

    def run(chooser):
        rounds = []
        speculative_rollout(
            Letters(3, 4, eos=2), tiny(3), 1, chooser, drafter=drafter(), nodes=nodes, watch=rounds.append
        )
        gap = variance = torch.zeros((), dtype=torch.float64)
        for finished in rounds:
            hit, coverage, offered = finished.hits()
            gap = gap + (hit.double() - coverage)[offered].sum()
            variance = variance + (coverage * (1 - coverage))[offered].sum()
        return gap, gap**2, variance

    outcomes = ReplayChooser.walk(run)
    return [float(sum(values[i] * p for values, p in outcomes)) for i in range(3)]


@pytest.mark.parametrize(
    "drafter",
    [lambda: HeadDrafter(FutureHeads.of(tiny(3), 2), (2, 2)), lambda: Scrambled(3)],
    ids=["heads", "scrambled"],
)
def test_hits_less_coverage_is_a_martingale_with_the_variance_of_coins(drafter):
    mean, square, variance = moments(drafter, 4)
    assert abs(mean) < 1e-12 and variance > 0.05
    assert abs(square - variance) < 1e-12


def test_accepted_drafts_of_a_round_are_the_path_probabilities():
    """E tau = sum over the nodes of the target's path probabilities, in the first round after a given first token."""
    drafter, policy = HeadDrafter(FutureHeads.of(tiny(3), 2), (2, 2)), tiny(3)
    trees = {}

    def run(chooser):
        rounds = []
        speculative_rollout(Letters(3, 4), policy, 1, chooser, drafter=drafter, nodes=5, watch=rounds.append)
        first = rounds[0]
        root = int(first.frontier.context[0, first.frontier.known[0] - 1])
        trees[root] = first
        return root, int(first.run.accepted[0])

    outcomes = ReplayChooser.walk(run)
    for root, finished in trees.items():
        mass = sum(p for (r, _), p in outcomes if r == root)
        mean = sum(p * accepted for (r, accepted), p in outcomes if r == root) / mass
        tree, law = finished.tree, finished.log_probs[0].exp()
        path = []
        for token, parent in zip(tree.tokens[0].tolist(), tree.parent[0].tolist(), strict=True):
            path.append((path[parent] if parent >= 0 else 1.0) * float(law[parent + 1, token]))
        assert tree.nodes == 5 and abs(mean - sum(path)) < 1e-12
