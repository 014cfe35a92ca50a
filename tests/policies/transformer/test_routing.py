"""Routing replay: recorded experts act again, flips are counted where the token's law comes from."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, Routes, StepwisePolicy, flipped_layers
from tests.policies.transformer.small_models import LENGTHS, policy_of, responses

NOISY = Numerics(router="noisy", router_noise=1.0, router_seed=1)


def engines(generator, rows=12):
    tokens, group = responses(rows, generator)
    trainer = policy_of("mixture").at(group)
    return trainer, trainer.under(NOISY), tokens, group


def test_replay_leaves_no_flip(generator):
    trainer, sampler, tokens, _ = engines(generator)
    recorded = StepwisePolicy(sampler).routes(tokens)
    assert flipped_layers(trainer.routes(tokens), recorded, 5).float().mean() > 0.3
    replayed = trainer.replaying(recorded)
    assert replayed.numerics.router == "replayed"
    assert int(flipped_layers(replayed.routes(tokens), recorded, 5).max()) == 0
    steps = StepwisePolicy(replayed)
    assert int(flipped_layers(steps.routes(tokens), recorded, 5).max()) == 0
    torch.testing.assert_close(steps.log_probs(tokens), replayed.log_probs(tokens).detach(), rtol=0, atol=1e-12)


def test_replaying_ones_own_routes_changes_nothing(generator):
    trainer, _, tokens, _ = engines(generator)
    same = trainer.replaying(trainer.routes(tokens))
    assert torch.equal(same.log_probs(tokens), trainer.log_probs(tokens))


def test_replay_removes_mismatch_but_not_all_of_it(generator):
    trainer, sampler, tokens, _ = engines(generator)
    with torch.no_grad():
        laws = sampler.log_probs(tokens)
        without = (trainer.log_probs(tokens) - laws).abs().mean()
        replayed = (trainer.replaying(sampler.routes(tokens)).log_probs(tokens) - laws).abs().mean()
    assert 0 < replayed < without / 2  # the noisy router also gives its experts other shares


def test_gradients_go_through_the_replayed_experts(generator):
    trainer, sampler, tokens, _ = engines(generator, rows=3)
    replayed = trainer.replaying(sampler.routes(tokens))
    coefficient = torch.ones(3, 5, dtype=torch.float64)
    terms = replayed.score_terms(tokens, coefficient)
    for row, term in zip(replayed.score(tokens).sum(1), terms, strict=True):
        gradients = torch.autograd.grad(row, replayed.parameters(), retain_graph=True)
        torch.testing.assert_close(term, torch.cat([g.flatten() for g in gradients]), rtol=1e-10, atol=1e-12)
    assert (terms - trainer.score_terms(tokens, coefficient)).abs().max() > 1e-3


def test_a_rollouts_decoder_keeps_the_routes(generator):
    trainer, _, tokens, group = engines(generator)
    sampler = policy_of("mixture").under(NOISY).recording()
    decoder, rows = sampler.decoder(group), torch.arange(12)
    for t in range(5):
        alive = rows[rows % 5 >= t]  # rows end at different times
        decoder.next_log_probs(tokens[alive, :t], alive)
    assert sampler.opened == [decoder]
    recorded, whole = decoder.routes(), trainer.under(NOISY).routes(tokens)
    assert int(flipped_layers(recorded, whole, 5).max()) == 0
    seen = (recorded.of_tokens(5) >= 0).all(-1).all(-1)
    assert torch.equal(seen, torch.arange(5) <= (rows % 5)[:, None])
    replayed = trainer.replaying(recorded)  # what was not recorded is left to the router
    assert torch.equal(replayed.routes(tokens).of_tokens(5)[seen], recorded.of_tokens(5)[seen])


def test_flips_are_counted_at_the_tokens_own_slot(generator):
    trainer, _, tokens, group = engines(generator)
    routes = trainer.routes(tokens)
    assert torch.equal(routes.first, LENGTHS[group])
    changed = routes.experts.clone()
    changed[0, routes.first[0] + 2, 1] = (changed[0, routes.first[0] + 2, 1] + 1) % 8
    found = flipped_layers(routes, Routes(changed, routes.first), 5)
    expected = torch.zeros_like(found)
    expected[0, 2] = 1
    assert torch.equal(found, expected)


def test_refusals(generator):
    trainer, _, tokens, _ = engines(generator)
    dense = policy_of("dense").at(torch.zeros(12, dtype=torch.int64))
    for ask in (lambda: dense.routes(tokens), lambda: dense.decoder(dense.group).routes()):
        with pytest.raises(InputError, match="routes need a mixture of experts"):
            ask()
    with pytest.raises(InputError, match="routing replay needs"):
        dense.replaying(trainer.routes(tokens))
    few = Routes(trainer.routes(tokens).experts[:3], torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="these 12 rows; found 3"):
        trainer.replaying(few).log_probs(tokens)
