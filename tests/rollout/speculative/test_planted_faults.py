"""More faults of walks, draws and caches (see `test_mutants`), planted in the engine, each found by the test made for it."""

import pytest
import torch

from testbed.policies.transformer import cache
from testbed.rollout.speculative import FutureHeads, HeadDrafter, verifiers, walk
from tests.rollout.speculative.test_node_laws import CASE, node_gap
from tests.rollout.speculative.worlds import (
    Letters,
    engine_law,
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
def test_a_cache_compacted_while_it_is_read_is_found_where_paths_skip_places(monkeypatch):
    """Column by column from the last one: a slot is overwritten before it was read."""

    def moved(self, source, slots):
        rows = torch.arange(len(source))
        for store in (*self.keys, *self.values):
            for column in reversed(range(source.shape[1])):
                store[rows, slots[:, column]] = store[rows, source[:, column]]

    monkeypatch.setattr(cache.KeyValueCache, "moved", moved)
    assert node_gap(CASE) > 1e-3


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


@pytest.mark.parametrize("fault", ["none"])
def test_without_a_fault_the_same_numbers_are_nought(fault):
    assert node_gap(CASE) < 1e-10 and sequences_wrong() == 0
    assert law_gap(Letters(3, 4, eos=2), 1, drafter=heads(3, (2, 2)), nodes=4) < 1e-12
