"""Moments of gradient estimators by recursion: against enumeration, closed forms at long horizons, planted bugs."""

import pytest
import torch

import testbed.exact.dynamic_moments as dynamic_moments
from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.estimators.gradient import gradient_terms
from testbed.exact.dynamic import markov_gradient, weight_growth
from testbed.exact.dynamic_moments import ESTIMATORS, Move, estimator_moments
from testbed.exact.law import enumerate_law
from testbed.exact.moments import moments
from testbed.policies.markov import MarkovPolicy
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.truncated import Truncated

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def world(seed, n_states=3, n_actions=3, horizon=5, positions=(2, 3)):
    env = MarkovEnvironment.random(n_states, n_actions, horizon, seed)
    pi, *mus = (MarkovPolicy.random(env.transition, 10 * seed + k) for k in range(len(positions) + 2))
    return env, pi, PrefixSchedule(mus, cuts(positions))


def enumerated(env, pi, schedule, estimator):
    """The same moments from every response, with the estimators' public definition."""
    law = enumerate_law(env, pi, schedule)
    batch = law.batch
    log_ratio = batch.logp_target - batch.logp_behavior
    prefix = log_ratio.cumsum(1).exp()
    weight = {
        "none": torch.ones_like(prefix),
        "token": log_ratio.exp(),
        "sequence_product": prefix[:, -1:].expand_as(prefix),
        "prefix_return": prefix,
        "prefix": torch.ones_like(prefix),
    }[estimator]
    advantage = (batch.token_reward * prefix).flip(1).cumsum(1).flip(1) if estimator == "prefix" else None
    return moments(law, gradient_terms(batch, weight, pi, advantage=advantage))


def agrees(env, pi, schedule, estimator):
    got, expected = estimator_moments(env, pi, schedule, estimator), enumerated(env, pi, schedule, estimator)
    pairs = [(got.mean, expected.mean), (got.second, expected.second), (got.variance, expected.variance)]
    return all(torch.allclose(a, b, **EXACT) for a, b in pairs)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "size",
    [
        {"seed": 0},
        {"seed": 1, "positions": ()},
        {"seed": 2, "n_states": 2, "n_actions": 4, "horizon": 4, "positions": (1,)},
        {"seed": 3, "n_states": 5, "n_actions": 2, "horizon": 8, "positions": (3, 7)},
        {"seed": 4, "n_states": 1, "horizon": 4, "positions": (2,)},
        {"seed": 5, "horizon": 1, "positions": ()},
    ],
    ids=lambda size: str(size["seed"]),
)
def test_moments_are_those_of_the_enumerated_law(estimator, size):
    env, pi, schedule = world(**size)
    assert agrees(env, pi, schedule, estimator)
    assert float(enumerated(env, pi, schedule, estimator).second.max()) > 1e-3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_lost_support_and_forbidden_tokens(estimator):
    env, pi, schedule = world(6)
    mu = Truncated(schedule.policies[0], top_k=2)  # the target can write what the behavior cannot
    assert agrees(env, pi, PrefixSchedule((mu, schedule.policies[1]), cuts((2,))), estimator)
    table = pi.logits.clone()
    table[0, 1] = float("-inf")  # the behavior can write what the target cannot
    assert agrees(env, MarkovPolicy(table, env.transition), schedule, estimator)


@pytest.mark.parametrize("estimator", ["sequence_product", "prefix"])
@pytest.mark.parametrize("horizon", [6, 512])
def test_exact_weights_are_unbiased_at_any_horizon(estimator, horizon):
    env, pi, schedule = world(7, n_states=4, horizon=horizon, positions=(3, horizon // 2))
    m = estimator_moments(env, pi, schedule, estimator)
    gradient = markov_gradient(env, pi)
    torch.testing.assert_close(m.mean, gradient, rtol=1e-9, atol=1e-9 * float(gradient.abs().max()))
    assert m.log_scale == pytest.approx(float(weight_growth(env, pi, schedule).log_second[-1]), rel=1e-10)


@pytest.mark.parametrize("estimator", ["none", "token"])
def test_uncorrected_estimators_are_biased(estimator):
    env, pi, schedule = world(7)
    assert float((estimator_moments(env, pi, schedule, estimator).mean - markov_gradient(env, pi)).abs().max()) > 1e-2


def test_on_policy_all_weights_are_one():
    env, pi, _ = world(8, horizon=40, positions=())
    plain = estimator_moments(env, pi, pi, "none")
    for estimator in ("token", "sequence_product", "prefix_return"):
        m = estimator_moments(env, pi, pi, estimator)
        torch.testing.assert_close(m.mean, plain.mean, **EXACT)
        torch.testing.assert_close(m.second, plain.second, **EXACT)


@pytest.mark.parametrize("horizon", [5, 512])
def test_identical_tokens_have_a_closed_form(horizon):
    # one state, return always 1: E[W^2 X_a^2] = d2^T (T q(1-q) + T^2 (q-p)^2), q = pi^2/(mu d2) the tilted law
    env = MarkovEnvironment(1, 3, horizon, torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3), torch.ones(1))
    p, mu = (torch.tensor([x], dtype=torch.float64) for x in ([0.2, 0.3, 0.5], [0.6, 0.3, 0.1]))
    policies = (MarkovPolicy.from_probs(x, env.transition) for x in (p, mu))
    m = estimator_moments(env, *policies, "sequence_product")
    d2 = (p**2 / mu).sum()
    q = p**2 / mu / d2
    log_second = horizon * d2.log() + (horizon * q * (1 - q) + horizon**2 * (q - p) ** 2).log()
    torch.testing.assert_close(m.log_second, log_second, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(m.mean, torch.zeros(1, 3).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_cost_is_linear_in_the_horizon(estimator, monkeypatch):
    pushed, built = [], []
    push, build = Move.push, Move.__init__
    monkeypatch.setattr(Move, "push", lambda self, level: (pushed.append(level.numel()), push(self, level))[1])
    monkeypatch.setattr(Move, "__init__", lambda self, *a, **k: (built.append(1), build(self, *a, **k))[1])
    work = []
    for horizon in (8, 16, 24):
        pushed.clear()
        built.clear()
        estimator_moments(*world(0, horizon=horizon), estimator)
        work.append((sum(pushed), len(built)))
    assert work[1][0] == 2 * work[0][0] and work[2][0] == 3 * work[0][0]
    assert work[0][1] == work[1][1] == work[2][1]


def scored_twice(make):
    def source(self, own, square=False):
        return make(self, own, False)

    return source


@pytest.mark.parametrize(
    ("estimator", "table", "entry"),
    [
        ("token", "SECOND", (("mu", "mu", "mu"), ("pi", "pi"), "pi")),  # the square of a weight forgotten
        ("prefix_return", "SECOND", (("tilt", "mu", "mu"), ("tilt", "pi"), "tilt")),  # the cross moment not weighted
        ("sequence_product", "SECOND", (("tilt",) * 3, ("pi", "tilt"), "tilt")),
        ("prefix_return", "FIRST", (("mu", "mu"), ("pi",))),
        ("sequence_product", "FIRST", (("pi", "pi"), ("mu",))),
    ],
)
def test_a_planted_measure_is_seen(estimator, table, entry, monkeypatch):
    env, pi, schedule = world(0)
    assert agrees(env, pi, schedule, estimator)
    monkeypatch.setitem(getattr(dynamic_moments, table), estimator, entry)
    assert not agrees(env, pi, schedule, estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_planted_formulas_are_seen(estimator, monkeypatch):
    env, pi, schedule = world(0)
    assert agrees(env, pi, schedule, estimator)
    with monkeypatch.context() as patch:
        patch.setattr(Move, "source", scored_twice(Move.source))  # x where x^2 belongs
        assert not agrees(env, pi, schedule, estimator)
    with monkeypatch.context() as patch:
        own = dynamic_moments._own
        patch.setattr(
            dynamic_moments, "_own", lambda level, s, a: own(level, s, a).roll(1, 0)
        )  # moments of another state
        assert not agrees(env, pi, schedule, estimator)
    if estimator != "prefix":
        with monkeypatch.context() as patch:
            patch.setattr(dynamic_moments, "comb", lambda j, i: 1)  # (R + r)^2 without its factor 2
            assert not agrees(env, pi, schedule, estimator)


def test_unknown_estimators_are_refused():
    env, pi, _ = world(0)
    with pytest.raises(InputError, match="`estimator` must be one of none, token"):
        estimator_moments(env, pi, pi, "segment")
