"""A run is a function of its settings, its gradient has the mean of its estimator, and divergence is an outcome."""

import math

import pytest
import torch

from testbed import RULES, MissingField, weigh
from testbed.core.choices import RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.estimators import loss as loss_module
from testbed.rollout import rollout
from testbed.stats.gates import MeanGate
from testbed.training import grpo
from testbed.training.checkpoints import load_checkpoint, save_checkpoint
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import source_of
from testbed.training.sources import Drawn, OnPolicySource
from tests.training.grpo_worlds import EXACT, TASK, made, model, ran

FIXED = {"sampler": {"dtype": "float32", "reduction": "fixed"}, "trainer": {"dtype": "float32", "reduction": "fixed"}}


# ------------------------------------------------------------------------------------------------ on-policy
def surrogate(rule):
    """What a clip-type rule's loss is made of, None for others."""
    run = made(**FIXED)
    batch, _ = run._scored(run.source.next_batch().batch)
    return weigh(rule, batch, advantage=batch.reward).objective


def neutral(rule):
    """Whether a rule leaves on-policy tokens alone: weight exactly 1, nothing rejected."""
    run = made(**FIXED)
    batch, _ = run._scored(run.source.next_batch().batch)
    try:
        weights = weigh(rule, batch, advantage=torch.tensor([1.0, -1.0]).repeat(batch.batch_size // 2))
    except MissingField:
        return False
    return bool(((weights.value == 1) | ~batch.mask).all() and (weights.gate == batch.mask).all())


def weights_after(rule, **settings):
    run = ran(rule=rule, updates=3, rate=1e-2, **settings)
    return run.model.vector(), run.curve["loss"], run


def test_rules_whose_weight_is_1_train_the_same_weights_bit_for_bit():
    rules = [rule for rule in RULES if neutral(rule)]
    assert len(rules) >= 25 and {"exact", "tis", "cis", "ppo_clip", "decoupled_ppo", "gspo", "spire"} <= set(rules)
    truth, losses, run = weights_after("none", **FIXED)
    assert max(run.curve["max_log_k"]) == 0 and not torch.equal(truth, model().vector())
    for rule in rules:
        found, found_losses, run = weights_after(rule, **FIXED)
        assert torch.equal(found, truth), rule
        assert max(run.curve["acted"]) == 0 and set(run.curve["ess_raw"]) == {1.0}, rule
        if surrogate(rule) is None:  # a surrogate has another value and the same slope
            assert found_losses == losses, rule


def test_a_mismatch_of_engines_separates_the_rules():
    settings = {"sampler": {"dtype": "bfloat16"}, "trainer": {"dtype": "float32"}}
    none, _, _ = weights_after("none", **settings)
    exact, _, run = weights_after("exact", **settings)
    assert not torch.equal(none, exact) and max(run.curve["max_log_k"]) > 1e-3


# ------------------------------------------------------------------------------------------------ the gradient
class Stale(OnPolicySource):
    """Batches written by other weights than those trained, one response per prompt."""

    def __init__(self, run):
        behavior = run.engines.sampler(model(7, torch.float64), 0)
        super().__init__(run.config, run.env, behavior, run.prompts, run.seed["source"])


PLAIN = {"baseline": "none", "scale": "none", "normalizer": "constant", "responses": 1, "prompts": 64, **EXACT}


def gradient(run, batch, advantage):
    """Flat gradient of the loss of a batch."""
    run.optimizer.zero_grad()
    run.loss(batch, advantage).backward()
    return torch.cat([w.grad.reshape(-1) for w in run.model.parameters()])


def every_response(run):
    """All responses to all prompts as one batch that the sampler could have recorded, and the probability of each."""
    every = torch.cartesian_prod(*[torch.arange(14)] * TASK.horizon)
    ended = (every == TASK.eos).cumsum(1)
    mask = ended - (every == TASK.eos).long() == 0
    first = torch.unique(torch.where(mask, every, 0) + 100 * (~mask).long(), dim=0)  # one of each, padding apart
    tokens, mask = first % 100, first < 100
    group = run.prompts.repeat_interleave(len(tokens))
    tokens, mask = tokens.repeat(len(run.prompts), 1), mask.repeat(len(run.prompts), 1)
    batch = rollout(TASK, run.source.policy, len(tokens), RandomChooser(0), group=group)
    with torch.no_grad():
        drawn = torch.where(mask, run.source.policy.at(group).score(tokens), 0.0)
    batch = batch.replaced(
        tokens=torch.where(mask, tokens, 0), mask=mask, segment=torch.where(mask, 0, -1), logp_behavior=drawn,
        logp_target=drawn, reward=TASK.reward(tokens, mask, group), version=torch.where(mask, 0, -1),
    )  # fmt: skip
    return run._scored(batch)[0], drawn.sum(1).exp() / len(run.prompts)


@pytest.mark.parametrize("rule", ["tis", "sequence_product", "ppo_clip"])
def test_the_measured_gradient_has_the_enumerated_mean_of_its_estimator(rule, seed):
    run = made(seed=seed, source=Stale, weights=model(0, torch.float64), rule=rule, constant=64.0, **PLAIN)
    batch, chance = every_response(run)
    assert abs(float(chance.sum()) - 1) < 1e-12
    along = torch.randn(run.model.parameter_count, generator=SeedTree("along").torch_generator(), dtype=torch.float64)
    one = [batch.select(torch.tensor([row])) for row in range(batch.batch_size)]
    terms = torch.stack([64 * gradient(run, row, row.reward) @ along if float(row.reward) else torch.tensor(0.0).double() for row in one])  # fmt: skip # noqa: E501
    mean = float(chance @ terms)
    variance = float(chance @ terms.square()) - mean**2
    gate = MeanGate(
        name=f"grpo gradient {rule}", mean=mean, variance=variance / 64, low=float(terms.min()),
        high=float(terms.max()), effect=0.25 * variance**0.5,
    )  # fmt: skip
    drawn = []
    for version in range(gate.sample_size()):
        run.source.version = version
        sample, _ = run._scored(run.source.next_batch().batch)
        drawn.append(gradient(run, sample, sample.reward) @ along)
    assert gate.decide(torch.stack(drawn)).passed
    forgotten = torch.stack(drawn) * 0 + mean + 0.25 * variance**0.5  # what the gate is declared to notice
    assert not gate.decide(forgotten).passed


def test_the_sequence_products_mean_is_the_true_gradient():
    run = made(source=Stale, weights=model(0, torch.float64), rule="sequence_product", constant=64.0, **PLAIN)
    batch, chance = every_response(run)
    estimated = gradient(run, batch, 64 * chance * batch.reward)
    run.optimizer.zero_grad()
    value = (run.policy.at(batch.group).score(batch.tokens) * batch.mask).sum(1).exp() @ batch.reward
    (-value / len(run.prompts)).backward()
    truth = torch.cat([w.grad.reshape(-1) for w in run.model.parameters()])
    assert float((estimated - truth).abs().max()) <= 1e-12 < 1e-3 < float(truth.abs().max())
    token = made(source=Stale, weights=model(0, torch.float64), rule="exact", constant=64.0, **PLAIN)
    biased = gradient(token, every_response(token)[0], 64 * chance * batch.reward)
    assert float((biased - truth).abs().max()) > 1e-3  # the token ratio's mean is another one


# ------------------------------------------------------------------------------------------------ to be continued
def plain(run):
    return run.model.vector(), run.curve, run.evaluations, run.outcome


@pytest.mark.parametrize("settings", [{}, {"minibatches": 3, "epochs": 2, "noise": "moe", "rule": "cis"}])
def test_a_run_picked_up_is_the_run_that_was_never_stopped(settings, tmp_path):
    settings = {"updates": 6, "rate": 1e-2, "evaluate_every": 2, **settings}
    weights, *rest = plain(ran(**settings))
    first = made(**settings)
    for _ in range(3):
        first.advance()
    save_checkpoint(tmp_path / "run.pt", first.state())
    second = made(**settings)
    second.restore(load_checkpoint(tmp_path / "run.pt"))
    while second.advance():
        pass
    found, *others = plain(second)
    assert torch.equal(found, weights) and others == rest
    with pytest.raises(InputError, match="another config"):
        made(**{**settings, "rate": 2e-2}).restore(load_checkpoint(tmp_path / "run.pt"))


def test_the_same_seed_is_the_same_run_and_another_is_not():
    a, b, c = (ran(seed=seed, updates=2, rate=1e-2).model.vector() for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


# ------------------------------------------------------------------------------------------------ divergence
def test_a_gradient_that_is_not_finite_ends_the_run_and_leaves_the_weights(monkeypatch):
    right = loss_module.policy_loss

    def broken(logp, *args, **options):
        return right(logp, *args, **options) * (float("nan") if run.done == 1 else 1.0)

    monkeypatch.setattr(grpo, "policy_loss", broken)
    run = made(updates=5)
    while run.advance():
        pass
    assert (run.outcome, run.done, len(run.curve["loss"])) == ("diverged", 2, 2)
    assert "update 1" in run.reason and math.isnan(run.curve["loss"][-1])
    assert bool(run.model.vector().isfinite().all())
    assert not run.advance() and run.done == 2


def test_weights_that_overflow_are_a_divergence():
    run = ran(updates=5, rate=1e30, rule="none")
    assert run.outcome == "diverged" and "not finite" in run.reason and run.done < 5


@pytest.mark.parametrize(
    "changes", [{"minibatches": 2}, {"epochs": 2}, {"system": "steps_off", "system_params": {"ahead": 3}}]
)
def test_a_law_that_is_not_finite_ends_the_run_wherever_it_is_met(changes):
    run = made(source=source_of, updates=8, rate=1e12, rule="exact", rule_params={"clamp": True}, **changes)
    while run.advance():
        pass
    assert run.outcome == "diverged" and "not finite" in run.reason


@pytest.mark.parametrize("norms", [(math.nan, 1.0), (1.0, math.nan)])  # `max` sees only the first of the two
def test_a_gradient_that_is_not_finite_is_noted_whichever_step_it_is_of(norms, monkeypatch):
    run, norms = made(updates=1, minibatches=2), iter(norms)
    monkeypatch.setattr(run, "_step", lambda *_: (0.5, next(norms)))
    run.advance()
    assert math.isnan(run.curve["grad_norm"][0])


def test_metrics_are_of_the_weights_that_the_steps_use():
    run = made(updates=1, minibatches=2, rule="spire")
    batch, _ = run._scored(run.source.next_batch().batch)
    shift = torch.linspace(-2, 2, batch.tokens.numel()).view_as(batch.logp_behavior)
    batch = batch.replaced(logp_behavior=torch.where(batch.mask, batch.logp_behavior + shift, 0.0).clamp(max=0.0))
    advantage, parts = torch.linspace(-1, 1, batch.batch_size, dtype=torch.float64), run._parts(batch)
    found = run._weights(batch, advantage, parts)
    whole = weigh("spire", batch, advantage=advantage)
    assert torch.equal(found.raw, whole.raw) and not torch.equal(found.value, whole.value)
    for rows in parts:
        part = weigh("spire", batch.select(rows), advantage=advantage[rows])
        for name in ("value", "gate", "acted", "raw"):
            assert torch.equal(getattr(found, name)[rows], getattr(part, name))


def test_what_a_rule_needs_and_lacks_is_said():
    with pytest.raises(MissingField, match="next_token"):
        made(rule="sis").advance()


# ------------------------------------------------------------------------------------------------ settings
@pytest.mark.parametrize("betas", [[0, 0.9], [0, 0], [0.9, 0]])
def test_betas_may_be_whole_numbers(untyped, betas):
    run = ran(updates=1, betas=betas)
    assert run.outcome == "finished" and [type(beta) for beta in run.config.plain()["betas"]] == [float, float]
    assert run.config.plain() == GRPOConfig.of({**run.config.plain(), "betas": list(map(float, betas))}).plain()


@pytest.mark.parametrize("betas", [[False, 0.9], [0.9, False], [1, 0.9], ["0", 0.9], [0.9], 0.9])
def test_betas_that_are_no_numbers_below_1_are_refused(untyped, betas):
    with pytest.raises(InputError, match="`betas` must be two numbers"):
        made(betas=betas)


def test_a_rate_is_a_divergence_or_refused_but_never_an_error():
    assert ran(updates=3, rate=3e37, rule="none").outcome == "diverged"
    assert ran(updates=3, rate=3e22, betas=[1 - 2**-53, 0.9], rule="none").outcome == "diverged"
    for rate, beta in ((1e300, 0.9), (3.5e37, 0.9), (4e22, 1 - 2**-53)):
        with pytest.raises(InputError, match=r"`rate` must be at most 3.4e\+38 times 1 - `betas`\[0\]; found"):
            made(rate=rate, betas=[beta, 0.99])


# ------------------------------------------------------------------------------------------------ advantages
def drawn(reward, number, response, replayed):
    run = made()
    batch = run.source.next_batch().batch.select(torch.arange(len(reward)))
    return run, Drawn(
        batch=batch.replaced(reward=torch.tensor(reward), group=torch.zeros(len(reward), dtype=torch.int64)),
        number=torch.tensor(number), response=torch.tensor(response), replayed=torch.tensor(replayed),
    )  # fmt: skip


def test_the_same_prompt_asked_twice_is_two_groups():
    run, batch = drawn([1.0, 0.0, 1.0, 1.0], [4, 4, 5, 5], [8, 9, 10, 11], [False] * 4)
    assert run._advantage(batch).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_a_replayed_response_keeps_the_advantage_of_its_first_time():
    run, first = drawn([1.0, 0.0, 1.0, 1.0], [4, 4, 5, 5], [8, 9, 10, 11], [False] * 4)
    run._advantage(first)
    _, again = drawn([1.0, 0.0, 1.0, 1.0], [4, 6, 6, 6], [8, 12, 13, 14], [True, False, False, False])
    found = run._advantage(again)
    assert found[0] == 1.0 and found[1:].tolist() == pytest.approx([-(2**0.5), 0.5**0.5, 0.5**0.5])
    restored = made()
    restored.restore(run.state())
    assert restored.kept == run.kept
