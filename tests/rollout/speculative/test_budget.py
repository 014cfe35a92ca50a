"""Budgets: the concurrency rule, the scan of a measured staircase, and the measurement itself under a clock of our own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.rollout.speculative import ConcurrencyBudget, FixedBudget, MarginalBudget, speculative_rollout
from testbed.rollout.speculative.staircase import measured_peak, pass_seconds
from tests.rollout.speculative.worlds import GROUP, ROWS, Letters, T, V, drafter_of, policy_of, tiny


@given(st.integers(1, 600), st.integers(1, 200), st.integers(0, 5), st.integers(5, 20))
def test_concurrency_shares_the_peak(peak, active, least, most):
    nodes = ConcurrencyBudget(peak=peak, least=least, most=most).nodes(active, None)
    assert least <= nodes <= most
    if least < nodes:
        assert active * (nodes + 1) <= peak
    if nodes < most:
        assert active * (nodes + 2) > peak


@given(
    st.lists(st.floats(0.1, 5.0), min_size=2, max_size=8),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
)
def test_the_scan_finds_the_best_rate_of_a_staircase(times, weights, drafting):
    weights = sorted(weights, reverse=True)
    gains = [sum(weights[: k + 1]) for k in range(len(weights))]
    nodes = MarginalBudget(seconds={4: times}, drafting=drafting).nodes(3, gains)
    rates = {0: 1 / times[0]}
    for k in range(1, min(len(times) - 1, len(gains)) + 1):
        rates[k] = (1 + gains[k - 1]) / (times[k] + drafting)
    assert rates[nodes] >= max(rates.values()) * (1 - 1e-12)


def test_with_convex_times_the_scan_stops_where_the_next_node_does_not_pay():
    """The marginal rule: the first N with w_(N+1) <= (T(N+2) - T(N+1)) (1 + F(N)) / T(N+1)."""
    times = [1.0 + 0.05 * k + 0.02 * k * k for k in range(12)]
    weights = [0.7 * 0.75**k for k in range(11)]
    gains = [sum(weights[: k + 1]) for k in range(11)]
    below = [0.0, *gains]
    stop = next(k for k in range(11) if weights[k] <= (times[k + 1] - times[k]) * (1 + below[k]) / times[k])
    assert MarginalBudget(seconds={1: times}).nodes(1, gains) == stop and 0 < stop < 11


def test_drafting_is_off_when_it_does_not_pay_and_on_again_when_few_are_left():
    """64 responses: each node costs a full step; 8: none costs anything."""
    counts = []
    budget = MarginalBudget(seconds={24: [1.0] * 5, 64: [1.0, 2.0, 3.0, 4.0, 5.0]})
    batch = speculative_rollout(
        Letters(V, T, 6), policy_of("dense"), ROWS, KeyedChooser(5), drafter=drafter_of("greedy", "dense", None),
        nodes=budget, group=GROUP, watch=lambda r: counts.append((len(r.frontier.rows), r.tree.nodes)),
    )  # fmt: skip
    assert {nodes for active, nodes in counts[1:] if active > 24} == {0}
    assert {nodes for active, nodes in counts[1:] if active <= 24} == {4}
    assert batch.batch_size == ROWS


def test_the_measurement_takes_the_fastest_turn_and_skips_the_first():
    class Clock:
        now, calls = 0.0, 0

        def __call__(self):
            self.calls += 1
            if self.calls % 2 == 0:  # the end of a pass
                self.now += [100.0, 3.0, 2.0, 4.0][(self.calls // 2 - 1) // 6] * (1 + (self.calls // 2 - 1) % 6)
            return self.now

    times = pass_seconds(tiny(3), [1, 2], 2, repeats=3, clock=Clock())
    assert times == {1: [2.0, 4.0, 6.0], 2: [8.0, 10.0, 12.0]}


def test_the_peak_counts_tokens_over_all_responses():
    assert measured_peak({1: [1.0, 1.0, 1.3], 8: [1.25, 3.0]}) == 8
    assert measured_peak({2: [1.0, 9.0]}) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedBudget(-1),
        lambda: ConcurrencyBudget(peak=0),
        lambda: ConcurrencyBudget(peak=8, least=3, most=2),
        lambda: MarginalBudget(seconds={}),
        lambda: MarginalBudget(seconds={1: []}),
        lambda: MarginalBudget(seconds={1: [0.0]}),
        lambda: MarginalBudget(seconds={1: [1.0]}, drafting=-1.0),
        lambda: measured_peak({}),
        lambda: measured_peak({1: [1.0]}, slack=0.5),
        lambda: pass_seconds(tiny(3), [0], 2),
        lambda: pass_seconds(tiny(3), [1], 2, repeats=0),
    ],
)
def test_impossible_budgets_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_fixed_budgets_are_equal_when_their_numbers_are():
    assert FixedBudget(2) == FixedBudget(2) != FixedBudget(0) and torch.is_tensor(GROUP)
