"""Tabular policies and schedules: laws, orders, and every way a schedule can be wrong."""

import itertools
import math

import pytest
import torch

from testbed import (
    ExogenousSchedule,
    InputError,
    PrefixSchedule,
    TabularPolicy,
    after_token,
    cuts,
    exogenous_hazard,
    hazard,
    one,
)
from testbed.core.prefix_order import all_responses, leaf_index, node_count, node_index, prefixes

MU = TabularPolicy.random(2, 3, 0)


def test_orders_agree_with_their_definition():
    for v, t in [(1, 3), (2, 3), (3, 2)]:
        listed = [p for n in range(t) for p in itertools.product(range(v), repeat=n)]
        assert list(prefixes(v, t)) == listed
        assert node_count(v, t) == len(listed)
        responses = all_responses(v, t)
        assert [tuple(r) for r in responses.tolist()] == list(itertools.product(range(v), repeat=t))
        assert leaf_index(responses, v).tolist() == list(range(v**t))
        for r, nodes in zip(responses.tolist(), node_index(responses, v).tolist(), strict=True):
            assert [listed[i] for i in nodes] == [tuple(r[:s]) for s in range(t)]


def test_policy_answers_by_prefix():
    row = listed = MU.table[prefixes(2, 3).index((1, 0))]
    torch.testing.assert_close(MU.next_log_probs(torch.tensor([[1, 0]]))[0], row)
    torch.testing.assert_close(MU.log_probs(torch.tensor([[1, 0, 1]]))[0, 2], listed)
    assert MU.score(torch.tensor([[1, 0, 1]])).shape == (1, 3)
    with pytest.raises(InputError, match="shorter than the horizon 3"):
        MU.next_log_probs(torch.tensor([[1, 0, 1]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TabularPolicy(torch.zeros(4, 2)), r"rows for V = 2; found 4 \(the nearest are 3 and 7\)"),
        (lambda: TabularPolicy(torch.full((1, 2), -math.inf)), "must allow a token"),
        (lambda: TabularPolicy(torch.full((1, 2), math.nan)), "must allow a token"),
        (lambda: TabularPolicy.from_probs(torch.tensor([[0.5, 0.6]])), "sum to 1"),
        (lambda: TabularPolicy.from_probs(torch.tensor([[-0.5, 1.5]])), "non-negative"),
        (lambda: PrefixSchedule((), one()), "at least one behavior"),
        (lambda: PrefixSchedule((MU, TabularPolicy.random(3, 2, 0)), one()), "share one vocabulary"),
        (lambda: PrefixSchedule((MU,), lambda p: -1).segment(()), r"found -1 after prefix \(\)"),
        (lambda: PrefixSchedule((MU,), lambda p: 1).segment(()), r"0 <= segment < 1.*found 1"),
        (lambda: PrefixSchedule((MU,), lambda p: 0.5).segment(()), r"must return an integer; found 0.5"),
        (
            lambda: PrefixSchedule((MU, MU), lambda p: int(len(p) < 2)).segment_table(2, 3),
            r"must not decrease.*found 0 after prefix \(0, 0\), 1 before",
        ),
        (lambda: ExogenousSchedule([(0.5, PrefixSchedule((MU,), one()))]), "sum to 1"),
        (lambda: hazard(1.5, 0), r"`rate` must lie in \[0, 1\]; found 1.5"),
        (lambda: exogenous_hazard((MU,), -0.1, 3), "`rate`"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_ready_made_schedules():
    assert [one()(p) for p in ((), (1, 1))] == [0, 0]
    assert [cuts((1, 3))((0,) * t) for t in range(5)] == [0, 1, 1, 2, 2]
    assert [after_token(1)(p) for p in ((), (0,), (1,), (1, 0))] == [0, 0, 1, 1]
    fired = [hazard(0.5, seed)((0,) * 8) for seed in range(200)]
    assert 0.3 < sum(fired) / 200 <= 1.0
    assert len({hazard(0.3, 7, last=9)(p) for p in itertools.product(range(2), repeat=6)}) == 1  # blind to the tokens
    assert hazard(0.0, 1)((0,) * 9) == 0
    assert hazard(1.0, 1, last=3)((0,) * 9) == 3


def test_composite_law_is_the_scheduled_policy():
    other = TabularPolicy.random(2, 3, 1)
    schedule = PrefixSchedule((MU, other), after_token(1))
    table = schedule.log_prob_table(2, 3)
    for i, p in enumerate(prefixes(2, 3)):
        torch.testing.assert_close(table[i], (other if 1 in p else MU).table[i])
    rows = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]])
    assert schedule.segments(rows).tolist() == [0, 1, 1, 0]


def test_hazard_branches_are_geometric():
    schedule = exogenous_hazard((MU, MU, MU), 0.25, 3)
    law = {tuple(s.segment((0,) * t) for t in range(3)): p for p, s in schedule.branches()}
    assert law == {(0, 0, 0): 0.5625, (0, 1, 1): 0.1875, (0, 0, 1): 0.1875, (0, 1, 2): 0.0625}
