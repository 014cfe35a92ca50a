"""Value and gradient terms against enumeration and finite differences."""

import pytest
import torch

from testbed import (
    InputError,
    PrefixSchedule,
    PrefixTree,
    SegmentedBatch,
    TabularPolicy,
    action_values,
    after_token,
    enumerate_law,
    exact_gradient,
    gradient_terms,
    moments,
    state_values,
    value_terms,
    weigh,
)
from testbed.core.prefix_order import node_index
from testbed.estimators.value import self_normalized_value
from testbed.exact.values import prefix_law


def world(eos=None, steps=False):
    v, t = 3, 3
    pi = TabularPolicy.random(v, t, 1)
    schedule = PrefixSchedule((TabularPolicy.random(v, t, 2), TabularPolicy.random(v, t, 3)), after_token(1))
    env = PrefixTree.random(v, t, 4, eos)
    if steps:
        env = PrefixTree(v, t, env.rewards, eos, token_rewards=TabularPolicy.random(v, t, 5).logits)
    return env, pi, schedule


@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("steps", [False, True])
def test_value_estimators_are_unbiased(eos, steps):
    env, pi, schedule = world(eos, steps)
    law = enumerate_law(env, pi, schedule)
    on_policy = enumerate_law(env, pi, pi)
    exact = float(on_policy.expect(on_policy.batch.reward))
    assert float(law.expect(law.batch.reward)) != pytest.approx(exact, abs=1e-3)
    assert float(law.expect(value_terms(law.batch))) == pytest.approx(exact, rel=1e-12)
    if steps:
        assert float(law.expect(value_terms(law.batch, "per_decision"))) == pytest.approx(exact, rel=1e-12)


def test_doubly_robust_is_unbiased_for_any_consistent_critic():
    env, pi, schedule = world(eos=2)
    law = enumerate_law(env, pi, schedule)
    nodes = node_index(law.batch.tokens, 3)
    exact = float(law.expect(value_terms(law.batch)))
    spread = {}
    for name, q in {"right": action_values(env, pi), "arbitrary": TabularPolicy.random(3, 3, 9).logits}.items():
        v = (pi.table.exp() * q).sum(1)
        batch = law.batch.replaced(action_value=q[nodes, law.batch.tokens])
        terms = value_terms(batch, "doubly_robust", state_value=v[nodes])
        assert float(law.expect(terms)) == pytest.approx(exact, rel=1e-12)
        spread[name] = float(moments(law, terms).variance)
        broken = value_terms(batch, "doubly_robust", state_value=v[nodes] + 0.3)  # V is not Q's mean: biased
        assert abs(float(law.expect(broken)) - exact) > 1e-3
    assert spread["right"] < spread["arbitrary"]


@pytest.mark.usefixtures("untyped")
def test_value_terms_say_what_they_need():
    env, pi, schedule = world()
    batch = enumerate_law(env, pi, schedule).batch
    with pytest.raises(InputError, match="`per_decision` needs `token_reward`"):
        value_terms(batch, "per_decision")
    with pytest.raises(InputError, match="needs `state_value`"):
        value_terms(batch, "doubly_robust")
    with pytest.raises(InputError, match="`kind` must be"):
        value_terms(batch, "wis")


def test_self_normalized_stays_in_range():
    w, f = torch.tensor([0.0, 5.0, 1.0]), torch.tensor([9.0, -1.0, 3.0])
    assert float(self_normalized_value(w, f)) == pytest.approx((-5 + 3) / 6)
    index = torch.tensor([[0, 0], [1, 2], [2, 2]])
    assert self_normalized_value(w, f, index).tolist() == pytest.approx([0.0, -1 / 3, 3.0])


@pytest.mark.parametrize("eos", [None, 2])
def test_gradients_agree_three_ways(eos):
    env, pi, schedule = world(eos)
    autograd, closed = exact_gradient(env, pi), exact_gradient(env, pi, "closed_form")
    torch.testing.assert_close(autograd, closed, rtol=1e-12, atol=1e-15)
    law = enumerate_law(env, pi, schedule)
    estimated = moments(law, gradient_terms(law.batch, weigh("sequence_product", law.batch), pi)).mean
    torch.testing.assert_close(estimated, autograd, rtol=1e-10, atol=1e-14)
    h = 1e-6
    for index in [(0, 0), (2, 1), (5, 2)]:
        bump = torch.zeros_like(pi.logits)
        bump[index] = h
        j = [float(state_values(env, TabularPolicy(pi.logits + s * bump))[0]) for s in (1, -1)]
        assert (j[0] - j[1]) / (2 * h) == pytest.approx(float(autograd[index]), abs=1e-8)


def test_score_terms_match_autograd():
    pi = TabularPolicy.random(3, 3, 7)
    tokens = torch.tensor([[0, 2, 1], [1, 1, 0]])
    coefficient = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]], dtype=torch.float64)
    got = pi.score_terms(tokens, coefficient)
    for b in range(2):
        logits = pi.logits.clone().requires_grad_(True)
        total = (torch.log_softmax(logits, -1)[node_index(tokens, 3)[b], tokens[b]] * coefficient[b]).sum()
        torch.testing.assert_close(got[b], torch.autograd.grad(total, logits)[0], rtol=1e-12, atol=1e-15)


def test_gradient_terms_refuse_shapes_that_would_broadcast():
    """BR-16."""
    env, pi, schedule = world()
    batch = enumerate_law(env, pi, schedule).batch
    with pytest.raises(InputError, match="`advantage` must have shape"):
        gradient_terms(batch, weigh("none", batch), pi, advantage=torch.ones(batch.batch_size, 1))
    with pytest.raises(InputError, match="`w` must have shape"):
        gradient_terms(batch, torch.ones(batch.batch_size, 1), pi)


def test_prefix_law_and_values_agree():
    env, pi, _ = world(eos=2)
    law = enumerate_law(env, pi, pi)
    reach = torch.zeros(13, dtype=torch.float64)
    nodes = node_index(law.batch.tokens, 3)
    for t in range(3):
        alive = law.batch.mask[:, t]
        reach.index_add_(0, nodes[alive, t], law.probs[alive])
    torch.testing.assert_close(prefix_law(env, pi), reach, rtol=1e-12, atol=0)
    assert float(state_values(env, pi)[0]) == pytest.approx(float(law.expect(law.batch.reward)), rel=1e-12)


@pytest.mark.parametrize("kind", ["importance_sampling", "per_decision", "doubly_robust"])
def test_padding_between_tokens_changes_no_value(kind):
    """The same responses with masked columns in front and in between give the same terms."""
    env, pi, schedule = world(eos=2, steps=True)
    law = enumerate_law(env, pi, schedule)
    nodes = node_index(law.batch.tokens, 3)
    q = TabularPolicy.random(3, 3, 9).logits
    v = (pi.table.exp() * q).sum(1)
    batch = law.batch.replaced(action_value=q[nodes, law.batch.tokens])
    state = v[nodes]
    want = value_terms(batch, kind, state_value=state)
    columns = torch.tensor([1, 3, 4])

    def spread(x, fill):
        out = torch.full((x.shape[0], 6), fill, dtype=x.dtype)
        out[:, columns] = x
        return out

    names = ("tokens", "segment", "logp_target", "logp_behavior", "token_reward", "action_value")
    loose = SegmentedBatch(
        mask=spread(batch.mask, False), reward=batch.reward, group=batch.group,
        **{n: spread(getattr(batch, n), 7 if n in ("tokens", "segment") else float("nan")) for n in names},
    )  # fmt: skip
    got = value_terms(loose, kind, state_value=spread(state, float("nan")))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)


def test_nan_advantages_are_refused_where_they_count():
    env, pi, schedule = world()
    batch = enumerate_law(env, pi, schedule).batch
    advantage = batch.reward.clone()
    advantage[0] = float("nan")
    with pytest.raises(InputError, match="`advantage` must not be NaN on a weighted token; found 3 NaN"):
        gradient_terms(batch, weigh("none", batch), pi, advantage=advantage)
    gated = weigh("none", batch).value.clone()
    gated[0] = 0.0
    assert gradient_terms(batch, gated, pi, advantage=advantage).isfinite().all()


def test_vocabularies_must_agree():
    env, _, schedule = world()
    with pytest.raises(InputError, match=r"share one vocabulary; found sizes \[2, 3\]"):
        enumerate_law(env, TabularPolicy.random(2, 3, 0), schedule)
