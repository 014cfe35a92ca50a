"""Choosers: what is drawn, with which probability, and that every branch is walked once."""

import math
from collections import Counter

import pytest
import torch

from testbed import InputError, KeyedChooser, RandomChooser, ReplayChooser
from testbed.core.choices import checked, inverse_cdf
from testbed.stats.gates import LawGate


def test_impossible_tokens_are_never_drawn():
    p = torch.tensor([[0.0, 1.0, 0.0]]).expand(1_000_000, 3)
    assert (RandomChooser(3).choose(p) == 1).all()


def test_float32_tails_survive():
    """BR-68: a float32 running sum forgets tail entries of 1e-9 behind a head of almost 1."""
    p = torch.tensor([[1.0 - 1e-3, *[1e-9] * 1_000_000]], dtype=torch.float32)
    u = torch.tensor([0.5, 0.9995], dtype=torch.float64)
    index = inverse_cdf(checked(p / p.double().sum()).expand(2, -1), u)
    assert index[0] == 0
    assert abs(int(index[1]) - 500_000) < 200  # half of the tail's mass


def test_the_very_end_of_the_unit_interval_is_the_last_possible_token():
    p = torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)
    assert inverse_cdf(p, torch.ones(3, dtype=torch.float64)).tolist() == [1, 1, 2]
    assert inverse_cdf(p, torch.zeros(3, dtype=torch.float64)).tolist() == [0, 1, 0]


def test_draws_follow_the_law(seed):
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    gate = LawGate(name="random chooser", probs=p, alternative=torch.tensor([0.48, 0.32, 0.15, 0.05]))
    n = gate.sample_size()
    draws = RandomChooser(seed).choose(p.expand(n, 4))
    assert gate.decide(draws).passed
    wrong = RandomChooser(seed).choose(p.flip(0).expand(n, 4))
    assert not gate.decide(wrong).passed


@pytest.mark.parametrize(
    "bad",
    [
        [[0.5, 0.6]],
        [[-0.1, 1.1]],
        [[math.nan, 1.0]],
        [[-0.7, -0.7]],
        [[math.inf, 0.0]],
        [[math.inf, -math.inf]],
        [[0.5, 0.5], [0.5, 0.4999], [1.0, 0.0]],  # one of many
        [[0.5, 0.5], [-1e-9, 1.0]],
    ],
)
def test_rows_that_are_no_law_are_refused(bad):
    for chooser in (RandomChooser(0), ReplayChooser([]), KeyedChooser(0)):
        with pytest.raises(InputError, match="non-negative and sum to 1"):
            chooser.choose(torch.tensor(bad), torch.zeros(len(bad), 2, dtype=torch.int64))


def test_replay_walks_every_branch_once_with_its_probability():
    def program(chooser):
        first = int(chooser.choose(torch.tensor([[0.2, 0.0, 0.8]])))
        if first == 2:  # the number of later choices may depend on earlier ones
            return (first,)
        pair = chooser.choose(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        return (first, *pair.tolist())

    walked = ReplayChooser.walk(program)
    outcomes = Counter(dict.fromkeys([r for r, _ in walked], 0))
    for result, probability in walked:
        outcomes[result] += probability
    assert len(walked) == len(outcomes) == 5
    assert sum(p for _, p in walked) == pytest.approx(1.0, abs=1e-15)
    assert outcomes[0, 1, 0] == pytest.approx(0.2 * 0.5 * 0.25, abs=1e-15)
    assert (1,) not in outcomes


def test_replay_refuses_endless_trees():
    with pytest.raises(InputError, match=r"at most 10 branches.*more than 10"):
        ReplayChooser.walk(lambda c: [int(c.choose(torch.tensor([[0.5, 0.5]]))) for _ in range(4)], limit=10)


def test_keyed_noise_depends_on_the_key_alone(seed):
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).expand(6, 4)
    keys = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [7, 3], [3, 7]])
    chooser = KeyedChooser(seed)
    together = chooser.choose(p, keys)
    order = torch.tensor([5, 3, 0, 1, 4, 2])
    assert torch.equal(KeyedChooser(seed).choose(p, keys[order]), together[order])
    assert torch.equal(chooser.choose(p, keys), together)
    with pytest.raises(InputError, match="needs the"):
        chooser.choose(p)


def test_keyed_draws_follow_the_law(seed):
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    gate = LawGate(name="keyed chooser", probs=p, alternative=torch.tensor([0.4, 0.5, 0.1]))
    n = gate.sample_size()
    keys = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)], 1)
    draws = KeyedChooser(seed).choose(p.expand(n, 3), keys)
    assert gate.decide(draws).passed
