"""Growth of second moments: backward recursion against conditioning on histories, and against the Markov recursion."""

import pytest
import torch

from testbed.environments.markov import MarkovEnvironment
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.dynamic import weight_growth
from testbed.exact.law import enumerate_law
from testbed.exact.second_moments import segment_d2, segment_moments, start_d2, start_histories
from testbed.policies.markov import MarkovPolicy
from testbed.policies.schedule import PrefixSchedule, after_token, cuts, exogenous_hazard
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.granularity import log_ratios


def case(segment_of, vocab=2, horizon=3, behaviors=2, eos=None):
    env = PrefixTree(vocab, horizon, [0.0] * vocab**horizon, eos)
    pi, *mus = (TabularPolicy.random(vocab, horizon, seed) for seed in range(behaviors + 1))
    if segment_of == "hazard":
        return env, pi, exogenous_hazard(mus, 0.4, horizon)
    return env, pi, PrefixSchedule(mus, segment_of)


CASES = {
    "fixed": case(cuts((1, 2)), behaviors=3),
    "stopping_time": case(after_token(1)),
    "end_token": case(after_token(1), vocab=3, eos=2),
    "noise": case("hazard"),
    "empty_segment": case(lambda prefix: 2 * (len(prefix) >= 1), behaviors=3),
}


@pytest.mark.parametrize("name", CASES)
def test_recursion_is_the_conditional_expectation_given_the_history(name):
    env, pi, schedule = CASES[name]
    law = enumerate_law(env, pi, schedule)
    found = start_d2(law, env, pi, schedule)
    ratio = log_ratios(law.batch).double()
    for k in range(found.shape[1]):
        squared = (2 * torch.where(law.batch.segment == k, ratio, 0.0).sum(1)).exp()
        history = start_histories(law, k)
        for g in history.unique():
            rows = history == g
            expected = (law.probs[rows] * squared[rows]).sum() / law.probs[rows].sum()
            torch.testing.assert_close(found[rows, k], expected.expand(int(rows.sum())), rtol=1e-12, atol=0)
    assert (found > 1.001).any()


@pytest.mark.parametrize("name", CASES)
def test_factors_multiply_to_the_second_moment_and_sups_bound_it(name):
    env, pi, schedule = CASES[name]
    found = segment_moments(enumerate_law(env, pi, schedule), env, pi, schedule)
    torch.testing.assert_close(found.factor.cumprod(0), found.second, rtol=1e-12, atol=0)
    assert (found.largest.cumprod(0) >= found.second * (1 - 1e-12)).all()
    torch.testing.assert_close(found.average[0], found.second[0], rtol=1e-12, atol=0)


def test_agrees_with_the_recursion_over_states_of_a_markov_world():
    env = MarkovEnvironment.random(3, 2, 6, seed=5)
    pi, *mus = (MarkovPolicy.random(env.transition, seed) for seed in range(4))
    schedule = PrefixSchedule(mus, cuts((2, 3)))
    found = segment_moments(enumerate_law(env, pi, schedule), env, pi, schedule)
    growth = weight_growth(env, pi, schedule)
    for mine, theirs in (
        (found.second, growth.log_end),
        (found.factor, growth.log_factor),
        (found.largest, growth.log_largest),
        (found.average, growth.log_average),
    ):
        torch.testing.assert_close(mine.log(), theirs, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found.factor, found.average, rtol=1e-2)


def test_a_policy_is_one_segment_and_the_target_itself_gives_one():
    env, pi, schedule = CASES["stopping_time"]
    mu = schedule.policies[0]
    torch.testing.assert_close(segment_d2(env, pi, mu), segment_d2(env, pi, PrefixSchedule((mu,), lambda prefix: 0)))
    torch.testing.assert_close(segment_d2(env, pi, pi), torch.ones(1, 7).double(), rtol=1e-14, atol=0)
    law = enumerate_law(env, pi, mu)
    torch.testing.assert_close(start_d2(law, env, pi, mu)[:, 0], segment_d2(env, pi, mu)[0, :1].expand(8))


def test_the_root_of_a_later_segments_table_is_the_average_under_the_behavior():
    env, pi, schedule = CASES["fixed"]
    law = enumerate_law(env, pi, schedule)
    average = segment_moments(law, env, pi, schedule).average
    torch.testing.assert_close(segment_d2(env, pi, schedule)[:, 0], average, rtol=1e-12, atol=0)


def test_a_segment_that_never_starts_has_no_growth():
    env, pi, schedule = CASES["empty_segment"]
    law = enumerate_law(env, pi, schedule)
    assert start_d2(law, env, pi, schedule)[:, 1].tolist() == [1.0] * 8


def test_without_support_the_drawn_words_alone_are_counted():
    env = PrefixTree(2, 1, [0.0, 0.0])
    pi, mu = (TabularPolicy.from_probs(torch.tensor([p])) for p in ([0.5, 0.5], [1.0, 0.0]))
    assert segment_d2(env, pi, mu).tolist() == [[0.25]]


def test_the_noise_of_the_schedule_is_part_of_the_history():
    env, pi, schedule = CASES["noise"]
    law = enumerate_law(env, pi, schedule)
    history = start_histories(law, 1)
    assert start_histories(law, 0).unique().numel() == len(schedule.branches()) == 4
    for g in history.unique():
        assert law.branch[history == g].unique().numel() == 1
