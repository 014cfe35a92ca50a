"""Centering removes the drift exactly, leaves what C16 says, and takes the weights of all tokens from the rule itself."""

import math

import pytest
import torch

from testbed import MissingField, PrefixTree, ReplayChooser, TabularPolicy, enumerate_law, gradient_terms, weigh
from testbed.core.errors import InputError
from testbed.estimators.score_centering import centered_loss, centered_terms
from testbed.estimators.vocabulary_weights import vocabulary_weights
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.policies.schedule import PrefixSchedule, after_token
from testbed.weighting import truncate
from testbed.weighting.registry import RULES
from tests.weighting.worlds import runnable

RULES_ON_TOKENS = [
    ("none", {}), ("exact", {}), ("tis", {"cap": 1.2}), ("mis", {"cap": 1.5}), ("icepop", {"low": 0.6, "high": 1.6}),
    ("band", {"low": 0.7, "high": 1.4}), ("cispo", {"eps_high": 0.3}), ("cis", {"lam": 0.4}), ("kpop", {"phi": 0.05}),
    ("sis", {}), ("sis", {"completion": True}), ("obrs", {}), ("ais", {"alpha": 0.4}),
    ("ppo_clip", {}), ("dual_clip", {}), ("m2po", {"tau": 0.2}), ("k3_token", {"threshold": 0.05}),
]  # fmt: skip


def world(seed=0, vocabulary=3, horizon=3, eos=None, scale=1.0):
    """Return (law, batch with whole laws, target, behaviors) of responses that two behaviors wrote in turn."""
    rewards = torch.linspace(-1, 1, vocabulary**horizon, dtype=torch.float64)
    env = PrefixTree(vocabulary, horizon, rewards=rewards, eos=eos)
    pi, *mus = (TabularPolicy.random(vocabulary, horizon, 10 * seed + k, scale) for k in (1, 2, 3))
    schedule = PrefixSchedule(mus, after_token(1))
    law = enumerate_law(env, pi, schedule)
    return law, with_next_token_laws(law.batch, pi, schedule), pi, mus


def largest(x):
    return float(x.abs().max())


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("rule", "params"), RULES_ON_TOKENS)
def test_a_constant_advantage_moves_nothing(rule, params, sign):
    law, batch, pi, _ = world(eos=2)
    constant = sign * torch.ones(batch.batch_size, dtype=torch.float64)
    terms = centered_terms(batch, rule, pi, constant, **params)
    assert largest(law.expect(terms)) < 1e-14
    drift = largest(law.expect(gradient_terms(batch, weigh(rule, batch, constant, **params), pi, constant)))
    assert drift < 1e-14 if rule == "exact" else drift > 1e-3
    assert largest(terms) > 0.1


@pytest.mark.parametrize(("rule", "params"), RULES_ON_TOKENS)
def test_what_remains_is_the_covariance_with_the_advantage(rule, params):
    """One decision: E g = E_q[k s A] - E_q[(k - w) s (A - E_q A)] for every advantage that leaves the weight alone."""
    law, batch, pi, mus = world(seed=3, horizon=1, vocabulary=5)
    a = torch.linspace(0.5, 3.0, 5, dtype=torch.float64)[batch.tokens[:, 0]]
    q, p = mus[0].table.exp()[0], pi.table.exp()[0]
    k, w = p / q, weigh(rule, batch, a, **params).value[:, 0]
    s = torch.eye(5, dtype=torch.float64) - p
    mean = q @ a
    expected = (q * k * a) @ s - (q * (k - w) * (a - mean)) @ s
    found = law.expect(centered_terms(batch, rule, pi, a, **params))[0]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
    uncentered = law.expect(gradient_terms(batch, w[:, None], pi, a))[0]
    assert rule == "exact" or largest(uncentered - found) > 1e-3


@pytest.mark.parametrize(("rule", "params"), RULES_ON_TOKENS)
def test_every_token_gets_the_weight_it_would_get_if_drawn(rule, params):
    """Responses that share a prefix show each other's weights: those of the whole vocabulary after it."""
    _, batch, _, _ = world()
    constant = torch.ones(batch.batch_size, dtype=torch.float64)
    drawn, every = vocabulary_weights(batch, rule, constant, **params)
    assert torch.equal(drawn.value, weigh(rule, batch, constant, **params).value)
    tokens = batch.tokens.tolist()
    for row, response in enumerate(tokens):
        for t in range(batch.horizon):
            for v in range(3):
                twin = tokens.index([*response[:t], v, *[0] * (2 - t)])
                assert float(every[row, t, v]) == pytest.approx(float(drawn.value[twin, t]), rel=1e-12)


def test_a_planted_weight_is_centered_by_itself(monkeypatch):
    """There is one definition: whatever the rule is made to give, the center is the mean of exactly that."""
    law, batch, pi, _ = world()
    ones = torch.ones(batch.batch_size, dtype=torch.float64)
    before = centered_terms(batch, "tis", pi, ones)
    monkeypatch.setattr(truncate, "truncate", lambda log_ratio, cap: log_ratio.exp() ** 2 + 0.3)
    after = centered_terms(batch, "tis", pi, ones)
    assert largest(after - before) > 0.1
    assert largest(law.expect(after)) < 1e-13


def test_a_draw_is_centered_by_its_expectation():
    _, batch, pi, _ = world(horizon=2)
    for row in range(batch.batch_size):
        one = batch.select([row])
        mean = sum(
            chance * terms
            for terms, chance in ReplayChooser.walk(lambda c, one=one: centered_terms(one, "sis", pi, chooser=c))
        )
        torch.testing.assert_close(mean, centered_terms(one, "sis", pi), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("normalizer", "constant"), [("constant", 1.0), ("token_mean", None), ("sequence_mean", None)])
@pytest.mark.parametrize(("rule", "params"), RULES_ON_TOKENS)
def test_the_loss_has_the_terms_as_its_gradient(rule, params, normalizer, constant):
    _, batch, pi, _ = world(seed=1, eos=2)
    logits = pi.logits.clone().requires_grad_()
    log_probs = TabularPolicy(logits).log_probs(batch.tokens)
    poison = torch.where(batch.mask[..., None], log_probs, math.nan)
    loss = centered_loss(poison, batch, rule, normalizer=normalizer, constant=constant, **params)
    (found,) = torch.autograd.grad(loss, logits)
    terms = centered_terms(batch, rule, pi, **params)
    if normalizer == "sequence_mean":
        terms = terms / batch.lengths[:, None, None] / batch.batch_size
    elif normalizer == "token_mean":
        terms = terms / batch.n_tokens
    torch.testing.assert_close(found, -terms.sum(0), rtol=1e-10, atol=1e-13)


def test_the_loss_follows_the_policy_being_trained():
    """Weights and centers come from the log-probs handed in, not from the recorded ones of the target."""
    _, batch, pi, mus = world(seed=2)
    other = TabularPolicy.random(3, 3, 99)
    current = batch.replaced(logp_target=other.score(batch.tokens), next_token=None)
    schedule = PrefixSchedule(mus, after_token(1))
    fresh = with_next_token_laws(current, other, schedule)
    log_probs = other.log_probs(batch.tokens)
    old, new = (centered_loss(log_probs, x, "tis", cap=1.2) for x in (batch, fresh))
    assert float(old) == float(new)
    assert float(old) != pytest.approx(float(centered_loss(pi.log_probs(batch.tokens), batch, "tis", cap=1.2)))


def test_the_loss_stays_finite_and_connected():
    _, batch, pi, _ = world()
    empty = batch.replaced(mask=torch.zeros_like(batch.mask))
    log_probs = pi.log_probs(batch.tokens).requires_grad_()
    loss = centered_loss(log_probs, empty, "tis")
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert float(loss.detach()) == 0.0 and not gradient.any()
    forbidden = TabularPolicy(torch.tensor([[0.0, -math.inf, 0.0]]).expand(13, 3))
    log_probs = forbidden.log_probs(batch.tokens).requires_grad_()
    loss = centered_loss(log_probs, batch, "exact")
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert loss.isfinite() and gradient.isfinite().all()
    sharp = TabularPolicy(torch.tensor([[0.0, -2000.0, 0.0]], dtype=torch.float64).expand(13, 3))
    rare = PrefixSchedule((sharp,), lambda prefix: 0)
    law = enumerate_law(PrefixTree(3, 3, rewards=torch.ones(27)), pi, sharp)
    saturated = with_next_token_laws(law.batch, pi, rare)
    log_probs = pi.log_probs(saturated.tokens).requires_grad_()
    loss = centered_loss(log_probs, saturated, "exact")
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert loss.isfinite() and gradient.isfinite().all()


def narrower(batch):
    laws = batch.next_token
    cut = {f"logp_{x}": getattr(laws, f"logp_{x}")[..., :2] for x in ("target", "behavior")}
    rest = {f"remaining_{x}": getattr(laws, f"logp_{x}")[..., 2].exp() for x in ("target", "behavior")}
    return batch.replaced(next_token=type(laws)(ids=laws.ids[..., :2], **cut, **rest))


def test_refusals():
    _, batch, pi, mus = world()
    with pytest.raises(MissingField, match="next_token"):
        centered_terms(batch.replaced(next_token=None), "tis", pi)
    with pytest.raises(InputError, match="over the whole vocabulary; found up to"):
        centered_terms(narrower(batch), "tis", pi)
    for rule in ("prefix", "seq_tis", "gspo", "minpro", "spire", "mu_grpo", "veto", "opsm", "k1_sequence"):
        with pytest.raises(InputError, match="only a rule whose weight depends on the token alone"):
            centered_terms(batch, rule, pi)
    for rule in ("ais", "m2po"):
        with pytest.raises(InputError, match=r"fixed parameters; found `.*`='auto'"):
            centered_terms(batch, rule, pi)
    with pytest.raises(InputError, match="must depend on the token and its two laws alone"):
        centered_terms(batch.replaced(logp_target=mus[0].score(batch.tokens)), "tis", pi)
    with pytest.raises(InputError, match="`next_log_probs` must have shape"):
        centered_loss(torch.zeros(1, 3, 3), batch, "tis")


def test_every_rule_on_tokens_is_centered_or_says_why_not():
    """No rule slips through with a center that is not its own: it is centered exactly, or refused."""
    law, batch, pi, _ = world()
    ones = torch.ones(batch.batch_size, dtype=torch.float64)
    batch = batch.replaced(logp_proximal=(batch.logp_target + batch.logp_behavior) / 2)
    centered = []
    for name, rule in RULES.items():
        try:
            terms = centered_terms(batch, name, pi, ones, **({} if "next_token" in rule.needs else runnable(name)))
        except InputError:
            continue
        centered.append(name)
        assert largest(law.expect(terms)) < 1e-14, name
    assert {"tis", "icepop", "band", "cis", "kpop", "sis", "obrs", "ais", "ppo_clip"} <= set(centered)
    refused = {name for name, rule in RULES.items() if "token" not in rule.granularities or not rule.alone}
    assert refused & set(centered) == set() and {"veto", "opsm", "mu_grpo", "prefix", "spire"} <= refused
    assert set(RULES) == set(centered) | refused | {"decoupled_ppo"}  # whose third policy has no whole law
