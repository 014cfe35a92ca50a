"""What a tree pass says at every node is what a fresh pass over that node's own path says, before and after paths are kept."""

import pytest
import torch

from tests.rollout.speculative.worlds import GROUP, PROMPTS, policy_of, speculative, transformer_of


def paths_of(finished):
    """Pairs of (row of the round, place, tokens of the response up to and including the place)."""
    frontier, tree = finished.frontier, finished.tree
    seen = tree.ancestors()
    prompt = frontier.known - frontier.position
    for row in range(len(frontier.rows)):
        so_far = frontier.context[row, prompt[row] : frontier.known[row]].tolist()
        for place in range(tree.nodes + 1):
            if place and int(tree.tokens[row, place - 1]) < 0:
                continue
            path = [int(tree.tokens[row, j]) for j in range(tree.nodes) if seen[row, place, j + 1]]
            yield row, place, so_far + path


def node_gap(case, rounds=None):
    """Largest difference between a node's law in the tree pass and in a fresh pass, over all rounds of a case."""
    seen = [] if rounds is None else rounds
    if rounds is None:
        speculative(case, watch=seen.append)
    policy = transformer_of(policy_of(case["policy"]))
    worst, nodes = 0.0, 0
    for finished in seen:
        by_length = {}
        for row, place, path in paths_of(finished):
            by_length.setdefault(len(path), []).append((row, place, path))
        for length, items in by_length.items():
            group = GROUP[finished.frontier.rows[[row for row, _, _ in items]]]
            if PROMPTS.shape[1] + 1 + length > policy.config.context:
                continue  # such a node is beyond every cap
            with torch.no_grad():
                fresh = policy.at(group).next_log_probs(torch.tensor([path for _, _, path in items]))
            mine = finished.log_probs[[row for row, _, _ in items], [place for _, place, _ in items]]
            worst = max(worst, float((mine - fresh).abs().max()))
            nodes += len(items)
    assert nodes > 500
    return worst


CASE = {"policy": "dense", "drafter": "greedy", "budget": "6", "order": "given", "cap": "horizon", "eos": "six"}


@pytest.mark.parametrize("policy", ["dense", "mixture"])
@pytest.mark.parametrize("drafter", ["greedy", "scrambled"])
def test_every_node_sees_its_own_path_only(policy, drafter):
    assert node_gap({**CASE, "policy": policy, "drafter": drafter}) < 1e-10


def test_the_rounds_looked_at_are_ragged_and_shrink():
    rounds = []
    speculative(CASE, watch=rounds.append)
    sizes = [len(r.frontier.rows) for r in rounds]
    assert len({int(x) for x in rounds[2].frontier.known}) > 3 and sizes[-1] < sizes[0]


def test_states_are_those_of_a_fresh_pass():
    """Drafters are shown the stream that a full pass over the response has at the same position."""
    rounds, policy = [], policy_of("dense")
    batch = speculative(CASE, watch=rounds.append)
    with torch.no_grad():
        states = policy.at(GROUP).hidden_states(batch.tokens)
    for finished in rounds:
        frontier = finished.frontier
        expected = states[frontier.rows, frontier.position - 1]
        assert float((frontier.state - expected).abs().max()) < 1e-10
