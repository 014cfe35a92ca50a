"""State laws, values, gradients and weight growth by recursion, against enumeration and against autograd."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.exact.dynamic import markov_action_values, markov_gradient, markov_value, state_distribution, weight_growth
from testbed.exact.dynamic_tables import markov_tables
from testbed.exact.law import enumerate_law
from testbed.policies.markov import MarkovPolicy, state_path
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, after_token, cuts, hazard, one
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def world(seed, n_states=3, n_actions=3, horizon=5, positions=(2, 3)):
    env = MarkovEnvironment.random(n_states, n_actions, horizon, seed)
    pi, *mus = (MarkovPolicy.random(env.transition, 10 * seed + k) for k in range(len(positions) + 2))
    return env, pi, PrefixSchedule(mus, cuts(positions))


@pytest.mark.parametrize("seed", range(3))
def test_state_distribution_is_that_of_the_enumerated_law(seed):
    env, pi, schedule = world(seed)
    law = enumerate_law(env, pi, schedule)
    path = state_path(law.batch.tokens, env.transition, env.start)
    expected = torch.stack([(law.probs[:, None] * (path == s)).sum(0) for s in range(env.n_states)], 1)
    torch.testing.assert_close(state_distribution(env, schedule), expected, **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_value_and_action_values(seed):
    env, pi, _ = world(seed)
    law = enumerate_law(env, pi, pi)
    assert markov_value(env, pi) == pytest.approx(float(law.expect(law.batch.reward)), rel=1e-10)
    q = markov_action_values(env, pi)
    following = law.batch.token_reward.flip(1).cumsum(1).flip(1)  # reward from each token on
    states = pi.states(law.batch.tokens)
    for t, s, a in [(0, env.start, 1), (2, 1, 0), (4, 2, 2), (4, 0, 1)]:
        here = law.probs * ((states[:, t] == s) & (law.batch.tokens[:, t] == a))
        if float(here.sum()) > 0:
            torch.testing.assert_close(q[t, s, a], (here * following[:, t]).sum() / here.sum(), **EXACT)


def recursive_value(env, logits):
    """The value as a differentiable function of the logits, written without the library."""
    probs, ahead = torch.softmax(logits, -1), env.terminal_rewards
    for _ in range(env.horizon):
        ahead = (probs * (env.rewards + ahead[env.transition])).sum(-1)
    return ahead[env.start]


@pytest.mark.parametrize(("seed", "horizon"), [(0, 5), (1, 60), (2, 512)])
def test_gradient_is_the_derivative_of_the_recursion(seed, horizon):
    env, pi, _ = world(seed, n_states=4, horizon=horizon)
    logits = pi.logits.clone().requires_grad_(True)
    value = recursive_value(env, logits)
    assert markov_value(env, pi) == pytest.approx(value.item(), rel=1e-10)
    torch.testing.assert_close(markov_gradient(env, pi), torch.autograd.grad(value, logits)[0], **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_weight_growth_is_that_of_the_enumerated_law(seed):
    env, pi, schedule = world(seed)
    law = enumerate_law(env, pi, schedule)
    log_ratio = law.batch.logp_target - law.batch.logp_behavior
    growth = weight_growth(env, pi, schedule)
    second = law.expect(log_ratio.cumsum(1).exp() ** 2)
    torch.testing.assert_close(growth.log_second.exp(), second, **EXACT)
    assert growth.last.tolist() == [1, 2, 4] and growth.label.tolist() == [0, 1, 2]
    torch.testing.assert_close(growth.log_end.exp(), second[[1, 2, 4]], **EXACT)
    torch.testing.assert_close(growth.log_factor.cumsum(0), growth.log_end, **EXACT)
    parts = torch.stack([log_ratio[:, :2].sum(1), log_ratio[:, 2], log_ratio[:, 3:].sum(1)], 1)
    torch.testing.assert_close(growth.log_average.exp(), law.expect(parts.exp() ** 2), **EXACT)
    states = state_path(law.batch.tokens, env.transition, env.start)
    for k, begin in enumerate((0, 2, 3)):
        conditional = []
        for s in states[:, begin].unique().tolist():
            here = law.probs * (states[:, begin] == s)
            conditional.append(float((here * parts[:, k].exp() ** 2).sum() / here.sum()))
        assert float(growth.log_largest[k].exp()) == pytest.approx(max(conditional), rel=1e-10)
    assert (growth.log_largest >= growth.log_factor - 1e-12).all()


def test_weight_growth_at_horizon_512_does_not_overflow():
    # identical tokens: E[W_T^2] = d2^T with d2 = .9^2/.1 + .1^2/.9 = 8.1111, far beyond float64 at T = 512
    env = MarkovEnvironment(1, 2, 512, torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2))
    pi, mu = (MarkovPolicy.from_probs(torch.tensor([p]).double(), env.transition) for p in ([0.9, 0.1], [0.1, 0.9]))
    growth = weight_growth(env, pi, mu)
    expected = torch.arange(1, 513).double() * torch.tensor(0.81 / 0.1 + 0.01 / 0.9).double().log()
    assert float(expected[-1]) > 1000
    torch.testing.assert_close(growth.log_second, expected, rtol=1e-6, atol=0)
    on_policy = weight_growth(env, pi, pi)
    torch.testing.assert_close(on_policy.log_second, torch.zeros(512).double(), rtol=0, atol=1e-12)


def test_disjoint_supports_have_weight_zero():
    env = MarkovEnvironment(1, 2, 3, torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2))
    pi, mu = (MarkovPolicy.from_probs(torch.tensor([p]), env.transition) for p in ([1.0, 0.0], [0.0, 1.0]))
    growth = weight_growth(env, pi, PrefixSchedule((pi, mu, mu), cuts((1, 2))))
    assert growth.log_second.tolist() == [0.0, float("-inf"), float("-inf")]
    assert not torch.isnan(growth.log_factor).any()


def test_a_truncated_behavior_is_read_with_its_own_law():
    env, pi, schedule = world(4)
    mu = Truncated(schedule.policies[0], temperature=0.8, top_k=2)
    law = enumerate_law(env, pi, mu)
    second = law.expect((law.batch.logp_target - law.batch.logp_behavior).sum(1).exp() ** 2)
    torch.testing.assert_close(weight_growth(env, pi, mu).log_second[-1].exp(), second, **EXACT)


def test_a_planted_transition_bug_is_seen(monkeypatch):
    env, pi, _ = world(0)
    expected = float(enumerate_law(env, pi, pi).batch.reward @ enumerate_law(env, pi, pi).probs)
    assert markov_value(env, pi) == pytest.approx(expected, rel=1e-10)
    import testbed.exact.dynamic as dynamic

    read = dynamic.markov_tables

    def without_terminal_reward(env, target, schedule):
        tables = read(env, target, schedule)
        tables.rewards[-1] = env.rewards
        return tables

    monkeypatch.setattr(dynamic, "markov_tables", without_terminal_reward)
    assert abs(markov_value(env, pi) - expected) > 1e-3


@pytest.mark.parametrize("segment_of", [cuts((2,)), one(), hazard(0.5, 3)])
def test_boundaries_by_position_are_read_at_every_position(segment_of):
    env, pi, _ = world(0)
    tables = markov_tables(env, pi, PrefixSchedule((pi, pi), segment_of))
    assert tables.segment.tolist() == [segment_of((1,) * t) for t in range(env.horizon)]


def test_worlds_that_are_not_markov_are_refused():
    env, pi, _ = world(0)
    one_cut = PrefixSchedule((pi, pi), cuts((1,)))
    with pytest.raises(InputError, match="one policy or a PrefixSchedule"):
        weight_growth(env, pi, ExogenousSchedule([(0.5, one_cut), (0.5, one_cut)]))
    with pytest.raises(InputError, match="positions fixed in advance"):
        weight_growth(env, pi, PrefixSchedule((pi, pi), after_token(2)))
    with pytest.raises(InputError, match="positions fixed in advance"):
        weight_growth(env, pi, PrefixSchedule((pi, pi), lambda prefix: int(prefix[:2] == (0, 1))))
    with pytest.raises(InputError, match="recursions need Markov policies"):
        weight_growth(env, pi, TabularPolicy.random(3, 5, 0))
    elsewhere = MarkovPolicy(pi.logits, (env.transition + 1) % 3)
    with pytest.raises(InputError, match="environment's own states"):
        weight_growth(env, elsewhere, pi)
    with pytest.raises(InputError, match="environment's own states"):
        weight_growth(env, pi, MarkovPolicy(pi.logits, env.transition, start=1))


def test_ratios_beyond_float64_are_refused():
    env, pi, _ = world(0)
    far = MarkovPolicy(torch.tensor([[0.0, -800.0, 0.0]]).repeat(3, 1), env.transition)
    with pytest.raises(InputError, match="overflow"):
        weight_growth(env, pi, far)
