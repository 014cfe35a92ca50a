"""Every fault that an engine of this kind has had, planted in ours, is found by the test that is there for it."""

import pytest
import torch

from testbed.policies.transformer import cache, tree_decoder
from testbed.rollout.speculative import FutureHeads, HeadDrafter, responses, tree, verifiers, walk
from tests.rollout.speculative.test_node_laws import CASE, node_gap
from tests.rollout.speculative.test_tree import saturated
from tests.rollout.speculative.worlds import (
    Letters,
    engine_law,
    finish_law,
    sequences_that_differ,
    speculative,
    target_law,
    tiny,
    total_variation,
)


def heads(vocab_size, fan_out):
    return lambda: HeadDrafter(FutureHeads.of(tiny(vocab_size), len(fan_out)), fan_out)


def sequences_wrong():
    cases = [{**CASE, "drafter": drafter} for drafter in ("greedy", "static", "untaught", "scrambled")]
    return sum(sequences_that_differ(case, speculative(case)) for case in cases)


def law_gap(env, n, **options):
    policy = tiny(env.vocab_size)
    return total_variation(engine_law(env, policy, n, **options), target_law(env, policy, n))


# ------------------------------------------------------------------------------------------------ the pass
def test_siblings_that_see_each_other_are_found_at_the_nodes(monkeypatch):
    right = tree_decoder.visible_slots

    def wrong(length, sees, used):
        depth = sees.sum(-1)
        return right(length, sees | (depth[:, :, None] == depth[:, None]), used)

    monkeypatch.setattr(tree_decoder, "visible_slots", wrong)
    assert node_gap(CASE) > 1e-3 and sequences_wrong() > 0


def test_a_depth_off_by_one_is_found_at_the_nodes(monkeypatch):
    right = tree_decoder.node_positions
    monkeypatch.setattr(tree_decoder, "node_positions", lambda length, depth: right(length, depth) + (depth > 0))
    assert node_gap(CASE) > 1e-3 and sequences_wrong() > 0


def test_a_cache_that_is_not_compacted_is_found_at_the_next_nodes(monkeypatch):
    monkeypatch.setattr(cache.KeyValueCache, "moved", lambda self, source, slots: None)
    assert node_gap(CASE) > 1e-3 and sequences_wrong() > 0


def test_a_cache_compacted_while_it_is_read_is_found_where_paths_skip_places(monkeypatch):
    """Column by column from the last one: a slot is overwritten before it was read."""

    def moved(self, source, slots):
        rows = torch.arange(len(source))
        for store in (*self.keys, *self.values):
            for column in reversed(range(source.shape[1])):
                store[rows, slots[:, column]] = store[rows, source[:, column]]

    monkeypatch.setattr(cache.KeyValueCache, "moved", moved)
    assert node_gap(CASE) > 1e-3


# ------------------------------------------------------------------------------------------------ the tree
def test_orphans_are_found_by_the_closure_test(monkeypatch):
    def deepest_first(candidates):
        order = torch.sort(candidates.log_weight.flip(1), dim=1, descending=True, stable=True).indices
        return candidates.nodes - 1 - order

    monkeypatch.setattr(tree, "order_of_weights", deepest_first)
    assert tree.largest(tree.RankPaths.product((4, 3, 2)).drafted(saturated()), 2).problem() != ""


# ------------------------------------------------------------------------------------------------ the walk
def test_a_bonus_from_the_drafter_is_found_in_the_law(monkeypatch):
    right = walk.membership_walk

    def wrong(candidates, log_probs, draws):
        leaf = torch.ones(log_probs.shape[:2], dtype=torch.bool)
        leaf[:, 0] = not candidates.nodes
        for row, parents in enumerate(candidates.parent):
            leaf[row, parents[parents >= 0] + 1] = False
        uniform = torch.full_like(log_probs, 1 / log_probs.shape[-1]).log()
        spoiled = torch.where(leaf[:, :, None], uniform, log_probs) if candidates.nodes else log_probs
        return right(candidates, spoiled, draws)

    monkeypatch.setattr(verifiers, "membership_walk", wrong)
    assert law_gap(Letters(3, 4, eos=2), 1, drafter=heads(3, (2, 2)), nodes=4) > 1e-3


def test_a_redraw_after_a_miss_is_found_in_the_law(monkeypatch):
    right = walk.membership_walk

    def wrong(candidates, log_probs, draws):
        run = right(candidates, log_probs, draws)
        if not candidates.nodes or int(run.accepted[0]):
            return run
        again = draws.token(log_probs[:, 0].exp(), 0, torch.ones(len(run.tokens), dtype=torch.bool))
        return walk.Run(
            tokens=run.tokens.index_copy(1, torch.tensor([0]), again[:, None]), path=run.path, accepted=run.accepted
        )

    monkeypatch.setattr(verifiers, "membership_walk", wrong)
    assert law_gap(Letters(2, 3), 1, drafter=heads(2, (1,)), nodes=1) > 1e-3


def test_coins_used_twice_are_found_token_by_token(monkeypatch):
    right = walk.Draws.token
    monkeypatch.setattr(walk.Draws, "token", lambda self, law, level, live: right(self, law, 0, live))
    assert sequences_wrong() > 0


def test_tokens_behind_an_end_token_are_found_in_the_lengths(monkeypatch):
    def wrong(self, run):
        step = torch.arange(run.tokens.shape[1])
        return (step <= run.accepted[:, None]) & (step < self.remaining[:, None])

    monkeypatch.setattr(walk.Draws, "emitted", wrong)
    monkeypatch.setattr(walk.Draws, "goes_on", lambda self, token, level: self.remaining > level + 1)
    assert sequences_wrong() > 0


# ------------------------------------------------------------------------------------------------ the group
def test_a_first_token_shared_by_the_group_is_found_in_the_pair_law(monkeypatch):
    right = walk.membership_walk

    def shared(candidates, log_probs, draws):
        run = right(candidates, log_probs, draws)
        return walk.Run(tokens=run.tokens[:1].expand_as(run.tokens), path=run.path, accepted=run.accepted)

    env = Letters(2, 2)
    honest = target_law(env, tiny(2), 2)
    monkeypatch.setattr(responses, "membership_walk", shared)
    law = engine_law(env, tiny(2), 2)
    assert total_variation(law, honest) > 0.1
    for row in range(2):  # each response alone looks right
        alone = {}
        for rows, p in law.items():
            alone[(rows[row],)] = alone.get((rows[row],), 0.0) + p
        assert total_variation(alone, target_law(env, tiny(2), 1)) < 1e-12


def test_a_batch_that_stops_as_a_whole_is_found_in_the_finish_law(monkeypatch):
    right = responses.goes_on_after

    def wrong(token, position, most, eos):
        return right(token, position, most, eos) & (position < most).all()

    options = {"drafter": heads(2, (1,)), "nodes": 1}
    alone = finish_law(target_law(Letters(2, 3), tiny(2), 1), None)
    monkeypatch.setattr(responses, "goes_on_after", wrong)
    law = engine_law(Letters(2, 3), tiny(2), 2, **options)
    assert total_variation(finish_law(law, None), alone) > 1e-3


@pytest.mark.parametrize("fault", ["none"])
def test_without_a_fault_the_same_numbers_are_nought(fault):
    assert node_gap(CASE) < 1e-10 and sequences_wrong() == 0
    assert law_gap(Letters(3, 4, eos=2), 1, drafter=heads(3, (2, 2)), nodes=4) < 1e-12
