"""Markov environments: the reward against a plain walk, padding, the last token's reward, refused tables."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.exact.law import enumerate_law
from testbed.policies.markov import MarkovPolicy

TRANSITION = torch.tensor([[0, 1], [1, 0]])
REWARDS = torch.tensor([[1.0, 2.0], [4.0, 8.0]])


def walk(env, tokens):
    state, total = env.start, 0.0
    for token in tokens:
        total += float(env.rewards[state, token])
        state = int(env.transition[state, token])
    return total + float(env.terminal_rewards[state])


def test_rewards_are_those_of_a_plain_walk(generator):
    env = MarkovEnvironment.random(4, 3, 6, seed=2)
    tokens = torch.randint(3, (20, 6), generator=generator)
    mask, group = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(20, dtype=torch.int64)
    expected = torch.tensor([walk(env, row) for row in tokens.tolist()], dtype=torch.float64)
    torch.testing.assert_close(env.reward(tokens, mask, group), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(env.token_reward(tokens, mask, group).sum(1), expected, rtol=1e-12, atol=1e-12)


def test_final_state_is_credited_to_the_last_real_token():
    env = MarkovEnvironment(2, 2, 3, TRANSITION, REWARDS, torch.tensor([100.0, 1000.0]), start=1)
    tokens = torch.tensor([[1, 1, 0], [1, 1, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    got = env.token_reward(tokens, mask, torch.zeros(2, dtype=torch.int64))
    assert got.tolist() == [[8.0, 2.0, 4.0 + 1000.0], [8.0, 2.0 + 1000.0, 0.0]]


def test_padding_changes_nothing():
    env = MarkovEnvironment(2, 2, 3, TRANSITION, REWARDS, torch.tensor([100.0, 1000.0]))
    mask = torch.tensor([[True, True, False]] * 2 + [[False] * 3])
    group = torch.zeros(3, dtype=torch.int64)
    got = env.reward(torch.tensor([[1, 0, 0], [1, 0, 10**9], [0, 0, 0]]), mask, group)
    assert got.tolist() == [1006.0, 1006.0, 0.0]  # a response without tokens earns nothing


def test_chain_pays_only_an_unbroken_run():
    env = MarkovEnvironment.chain(n_states=3, horizon=5)
    tokens = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 1, 1, 0]])
    mask, group = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    assert env.reward(tokens, mask, group).tolist() == [3.0, 0.0, 1.0]


def test_random_worlds_depend_on_the_seed_only():
    a, b, c = (MarkovEnvironment.random(4, 3, 6, seed=s) for s in (1, 1, 2))
    assert torch.equal(a.rewards, b.rewards) and torch.equal(a.transition, b.transition)
    assert not torch.equal(a.rewards, c.rewards)
    assert not MarkovEnvironment.random(4, 3, 6, seed=1, terminal=False).terminal_rewards.any()
    assert a.terminal_rewards.all()


def test_enumeration_accepts_the_world():
    env = MarkovEnvironment.random(3, 2, 4, seed=0)
    pi = MarkovPolicy.random(env.transition, seed=0)
    law = enumerate_law(env, pi, pi)
    assert law.batch.batch_size == 16
    torch.testing.assert_close(law.batch.token_reward.sum(1), law.batch.reward, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "`horizon`"),
        ({"n_states": 0}, "`n_states`"),
        ({"transition": TRANSITION[:1]}, "`transition` must have shape"),
        ({"transition": TRANSITION + 1}, "integer states in 0..1"),
        ({"transition": TRANSITION.double()}, "deterministic"),
        ({"rewards": REWARDS[0]}, "`rewards` must have shape"),
        ({"rewards": REWARDS * float("inf")}, "finite"),
        ({"terminal_rewards": torch.zeros(3)}, "`terminal_rewards` must have shape"),
        ({"terminal_rewards": torch.tensor([0.0, float("nan")])}, "finite"),
        ({"start": 2}, "`start`"),
    ],
)
def test_bad_worlds_are_refused(changes, message):
    given = {"n_states": 2, "n_actions": 2, "horizon": 3, "transition": TRANSITION, "rewards": REWARDS} | changes
    with pytest.raises(InputError, match=message):
        MarkovEnvironment(**given)
