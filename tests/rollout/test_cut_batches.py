"""The finished-first cut: who is kept, how ties are broken, and what the chooser is asked."""

import itertools
import math

import pytest
import torch

from testbed import PrefixTree, RandomChooser, ReplayChooser, TabularPolicy, output_law
from testbed.core.choices import KeyedChooser
from testbed.core.errors import InputError
from testbed.rollout import rollout
from testbed.rollout.cut_batches import finished_first, first_to_end, ticks_to_end


def kept_rows(ticks, m):
    return output_law(lambda chooser: tuple(first_to_end(torch.tensor(ticks), m, chooser).tolist()))


@pytest.mark.parametrize("ticks", [(2, 1, 3), (1, 1, 1), (2, 2, 1, 2), (3, 1, 3, 1, 2), (5,), (1, 1, 2, 2)])
def test_kept_rows_are_those_of_a_random_order_of_the_ties(ticks):
    for m in range(1, len(ticks) + 1):
        expected = {}
        orders = list(itertools.permutations(range(len(ticks))))
        for order in orders:
            first = sorted(range(len(ticks)), key=lambda row: (ticks[row], order[row]))[:m]
            rows = tuple(sorted(first))
            expected[rows] = expected.get(rows, 0) + 1 / len(orders)
        assert kept_rows(ticks, m) == pytest.approx(expected, abs=1e-12)


def test_ties_cost_no_more_branches_than_there_are_subsets():
    ticks = torch.tensor([4, 1, 4, 4, 4])
    assert len(ReplayChooser.walk(lambda chooser: first_to_end(ticks, 3, chooser))) == math.comb(4, 2)


def test_without_ties_nothing_is_drawn():
    class Refusing:
        def choose(self, probs, key=None):
            raise AssertionError("a draw without a tie")

    assert first_to_end(torch.tensor([3, 1, 2]), 2, Refusing()).tolist() == [1, 2]


@pytest.mark.parametrize("m", [0, -1, 4])
def test_more_than_were_started_or_none_cannot_be_kept(m):
    with pytest.raises(InputError, match=r"1\.\.3"):
        first_to_end(torch.tensor([1, 1, 1]), m, RandomChooser(0))


def world():
    return PrefixTree(2, 3, rewards=torch.arange(8.0).tolist(), eos=1), TabularPolicy.random(2, 3, 0)


def test_the_end_token_takes_a_tick():
    env, _ = world()
    half = TabularPolicy(torch.zeros(7, 2))
    batch = rollout(env, half, 40, RandomChooser(1))
    ended = ((batch.tokens == 1) & batch.mask).any(1)
    zeros = ((batch.tokens == 0) & batch.mask).sum(1)
    assert torch.equal(ticks_to_end(batch), zeros + ended.long())


def test_keeping_all_is_the_rollout_itself():
    env, pi = world()
    all_kept = finished_first(env, pi, 5, 5, KeyedChooser(3), target=pi)
    plain = rollout(env, pi, 5, KeyedChooser(3), target=pi)
    assert torch.equal(all_kept.tokens, plain.tokens) and torch.equal(all_kept.logp_behavior, plain.logp_behavior)


def test_nobody_kept_ended_after_somebody_lost():
    env, pi = world()
    drawn = rollout(env, pi, 12, KeyedChooser(9)).lengths
    for m in range(1, 13):
        kept = finished_first(env, pi, 12, m, KeyedChooser(9)).lengths
        assert sorted(kept.tolist()) == sorted(drawn.tolist())[:m]
