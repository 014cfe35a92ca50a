"""Whole laws attached to a batch are those its tokens were drawn from and scored under."""

import pytest
import torch

from testbed import PrefixTree, RandomChooser, TabularPolicy, enumerate_law
from testbed.core.errors import InputError, TooLarge
from testbed.exact import next_token_laws
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, after_token, cuts, exogenous_hazard
from testbed.rollout.engine import rollout

V, T = 3, 3


def world(seed=0, eos=None):
    env = PrefixTree.random(V, T, seed) if eos is None else PrefixTree(V, T, rewards=torch.arange(V**T) / V**T, eos=eos)
    pi, *mus = (TabularPolicy.random(V, T, 10 * seed + k) for k in (1, 2, 3))
    return env, pi, mus


@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize(
    "make", [lambda mus: PrefixSchedule(mus, after_token(1)), lambda mus: exogenous_hazard(mus, 0.3, T)]
)
def test_every_position_has_the_law_of_its_segment(eos, make):
    env, pi, mus = world(eos=eos)
    batch = enumerate_law(env, pi, make(mus)).batch
    laws = with_next_token_laws(batch, pi, make(mus)).next_token
    for name in ("target", "behavior"):
        drawn = getattr(laws, f"logp_{name}").gather(-1, batch.tokens[..., None])[..., 0]
        torch.testing.assert_close(drawn[batch.mask], getattr(batch, f"logp_{name}")[batch.mask], rtol=1e-13, atol=0)
        total = getattr(laws, f"logp_{name}").exp().sum(-1)[batch.mask]
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)
    second = batch.mask & (batch.segment == 1)
    assert second.any() and (batch.mask & ~second).any()
    expected = mus[1].log_probs(batch.tokens)[second]
    assert torch.equal(laws.logp_behavior[second], expected)
    assert torch.equal(laws.ids[batch.mask], torch.arange(V).expand(batch.n_tokens, V))


def test_a_rollout_and_one_policy_and_a_list():
    env, pi, mus = world(1)
    batch = rollout(env, mus[0], 7, RandomChooser(0), target=pi)
    one, several = (with_next_token_laws(batch, pi, b).next_token for b in (mus[0], [mus[0], mus[1]]))
    assert torch.equal(one.logp_behavior, several.logp_behavior)


def test_policies_that_did_not_write_the_batch_are_refused():
    env, pi, mus = world()
    batch = enumerate_law(env, pi, PrefixSchedule(mus, cuts([1]))).batch
    with pytest.raises(
        InputError, match=r"the law of the behavior must give drawn tokens the recorded `logp_behavior`"
    ):
        with_next_token_laws(batch, pi, mus[::-1])
    with pytest.raises(InputError, match=r"the law of the target must give drawn tokens the recorded `logp_target`"):
        with_next_token_laws(batch, mus[0], mus)
    with pytest.raises(InputError, match=r"one policy per segment; found 1 for 2 segments"):
        with_next_token_laws(batch, pi, mus[0])
    moved = batch.replaced(logp_target=batch.logp_target - 1e-5 * batch.mask)
    with pytest.raises(InputError, match=r"by up to 1e-05 nats"):
        with_next_token_laws(moved, pi, mus)
    assert with_next_token_laws(moved, pi, mus, tolerance=1e-4).next_token is not None


def test_branches_must_number_their_policies_alike():
    env, pi, mus = world()
    split = ExogenousSchedule([(0.5, PrefixSchedule(mus, cuts([1]))), (0.5, PrefixSchedule(mus[::-1], cuts([1])))])
    with pytest.raises(InputError, match="must number the same policies alike"):
        with_next_token_laws(enumerate_law(env, pi, split).batch, pi, split)


def test_an_impossible_token_keeps_its_law():
    pi, mu = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0]])), TabularPolicy.from_probs(torch.tensor([[0.5, 0.5]]))
    batch = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, mu).batch
    assert with_next_token_laws(batch, pi, mu).next_token.logp_target[0, 0].exp().tolist() == [0.0, 1.0]


def test_the_size_is_checked_before_anything_is_computed(monkeypatch):
    env, pi, mus = world()
    batch = enumerate_law(env, pi, mus[0]).batch
    monkeypatch.setattr(next_token_laws, "MOST_PROBABILITIES", 10)
    with pytest.raises(TooLarge, match=r"up to 10 probabilities; found \(27, 3\) positions of 3 tokens"):
        with_next_token_laws(batch, pi, mus[0])
