"""The caching decoder: equal to the full pass whatever the rows do, fed each token once, faults in it noticed."""

import pytest
import torch

from testbed.core.choices import RandomChooser
from testbed.core.prefix_order import leaf_index
from testbed.environments.arithmetic import ArithmeticTask
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import enumerate_law
from testbed.policies.transformer import Numerics, StepwisePolicy, Transformer, TransformerConfig, TransformerPolicy
from testbed.policies.transformer import decoder as decoder_module
from testbed.policies.transformer.cache import KeyValueCache
from testbed.rollout import rollout
from tests.policies.transformer.small_models import CONFIGS, T, policy_of, responses

KINDS = sorted(CONFIGS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [True, False])
def test_steps_equal_the_full_pass(kind, cached, generator):
    tokens, group = responses(9, generator)
    pi = policy_of(kind, cached=cached).at(group)
    torch.testing.assert_close(StepwisePolicy(pi).log_probs(tokens), pi.log_probs(tokens).detach(), rtol=0, atol=1e-12)


def journeys(pi, tokens, group):
    """Rows that leave, come back several tokens longer, arrive late, and change the company they keep."""
    decoder = pi.decoder(group)
    visits = [(0, [0, 1, 2, 3]), (1, [3, 1]), (2, [1]), (4, [0, 3]), (5, [1, 0]), (5, [2, 4]), (5, [4]), (3, [5, 0])]
    for t, rows in visits:
        yield t, rows, decoder.next_log_probs(tokens[rows, :t], torch.tensor(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_come_and_go(kind, generator):
    tokens, group = responses(6, generator, length=6)
    pi = policy_of(kind, reduction="fixed")
    full = pi.at(group).log_probs(tokens)
    for t, rows, laws in journeys(pi, tokens, group):
        assert torch.equal(laws, full[rows, t])


def test_a_row_that_shows_another_history_is_seen_again(generator):
    tokens, group = responses(2, generator)
    pi, rows = policy_of("mixture", reduction="fixed"), torch.arange(2)
    decoder = pi.decoder(group)
    decoder.next_log_probs(tokens, rows)
    other = tokens.clone()
    other[:, 2] = (other[:, 2] + 1) % 7
    for t in (5, 3, 4):
        assert torch.equal(decoder.next_log_probs(other[:, :t], rows), pi.at(group).next_log_probs(other[:, :t]))


def test_each_token_is_fed_once(monkeypatch, generator):
    tokens, group = responses(4, generator)
    fed, whole = [], decoder_module.residual_stream

    def counting(chunk, *rest):
        fed.append(chunk.shape[1])
        return whole(chunk, *rest)

    monkeypatch.setattr(decoder_module, "residual_stream", counting)
    StepwisePolicy(policy_of("dense").at(torch.full((4,), 1))).log_probs(tokens)
    assert fed == [3, 1, 1, 1, 1]  # start and prompt, then one token at a time
    decoder = policy_of("dense").decoder(group)
    decoder.next_log_probs(tokens, torch.arange(4))
    assert fed[-1] == 1 + int(torch.tensor([4, 2, 0, 3, 1])[group].max()) + T


def shifted_slot(cache, layer, rows, positions, key, value, used):
    return whole_cache(cache, layer, rows, (positions - 1).clamp(min=0), key, value, used)


def not_exchanged(cache, some, others):
    """Leave the lines of the cache where they are."""


whole_cache = KeyValueCache.extended


@pytest.mark.parametrize(("name", "fault"), [("extended", shifted_slot), ("exchange", not_exchanged)])
def test_a_broken_cache_is_noticed(name, fault, monkeypatch, generator):
    tokens, group = responses(6, generator, length=6)
    pi = policy_of("dense")
    full = pi.at(group).log_probs(tokens).detach()
    monkeypatch.setattr(KeyValueCache, name, fault)
    assert max(float((laws - full[rows, t]).abs().max()) for t, rows, laws in journeys(pi, tokens, group)) > 1e-3


def test_a_decoder_keeps_the_weights_it_was_opened_with(generator):
    tokens, group = responses(2, generator)
    pi, rows = policy_of("dense"), torch.arange(2)
    decoder, before = pi.decoder(group), pi.at(group).next_log_probs(tokens).detach()
    with torch.no_grad():
        pi.model.weights["head"] *= 2
    assert torch.allclose(decoder.next_log_probs(tokens, rows), before, rtol=0, atol=1e-12)
    assert (pi.at(group).next_log_probs(tokens) - before).abs().max() > 1e-2
    with torch.no_grad():
        assert (pi.at(group).next_log_probs(tokens) - before).abs().max() > 1e-2


def test_a_rollout_records_the_decoders_numbers():
    task = ArithmeticTask()
    model = Transformer.random(TransformerConfig(vocab_size=14, width=16, heads=2, layers=1, hidden=16), 0)
    pi = TransformerPolicy(model, task.prompt_tokens(task.prompts()), numerics=Numerics(reduction="fixed"))
    batch = rollout(task, pi, 30, RandomChooser(1), target=pi, group=task.sample_prompts(30, 2))
    assert torch.equal(batch.logp_behavior, batch.logp_target)
    assert batch.lengths.unique().numel() > 1  # some responses ended early


def test_the_law_of_the_steps_is_what_a_rollout_records():
    model = Transformer.random(TransformerConfig(vocab_size=3, width=16, heads=2, layers=1, hidden=16), 0)
    sampler = TransformerPolicy(model, numerics=Numerics(dtype="bfloat16", weights="int8", reduction="fixed"))
    env = PrefixTree(3, 3, rewards=torch.zeros(27))
    law = enumerate_law(env, TransformerPolicy(model), StepwisePolicy(sampler))
    batch = rollout(env, sampler, 40, RandomChooser(0))
    assert torch.equal(batch.logp_behavior, law.batch.logp_behavior[leaf_index(batch.tokens, 3)])
    assert (law.batch.logp_behavior - law.batch.logp_target).abs().max() > 1e-4
    wrapped = rollout(env, StepwisePolicy(sampler), 40, RandomChooser(0))
    assert torch.equal(wrapped.logp_behavior, batch.logp_behavior)


def test_no_rows_and_no_tokens_are_answered():
    pi = policy_of("mixture")
    decoder = pi.decoder(torch.tensor([0, 1]))
    assert decoder.next_log_probs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).shape == (
        0,
        7,
    )
    conditioned = pi.at(torch.tensor([0, 1]))
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    assert conditioned.log_probs(nothing).shape == StepwisePolicy(conditioned).log_probs(nothing).shape == (2, 0, 7)
    assert conditioned.score_terms(nothing, torch.zeros(2, 0)).abs().sum() == 0
