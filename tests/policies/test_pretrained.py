"""The small real language model as a policy: its cache, its two passes, and what is said when it is not installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from testbed.core.choices import RandomChooser
from testbed.core.errors import InputError, TooLarge
from testbed.policies import pretrained
from testbed.policies.gguf_weights import halves_first, optional_module, read_llama, weights_path
from testbed.policies.pretrained import PretrainedPolicy, load_pretrained
from testbed.policies.row_caches import RowCaches
from tests.policies.language_models import CountingModel

PROMPTS = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([0, 5])]


def answer(model, prompt, prefix):
    return model.logits(torch.cat([prompt, prefix]))


@pytest.fixture
def prefixes(generator):
    return torch.randint(7, (4, 9), generator=generator)


# ------------------------------------------------------------------------------------------------ caches of rows
def test_a_cache_answers_as_the_whole_context_does(prefixes):
    model = CountingModel()
    prompts = [PROMPTS[g] for g in (0, 1, 2, 0)]
    caches = RowCaches(model, prompts)
    # all rows; some, in another order; a row that was away for a while; one alone; all again, some of them far behind
    for rows, t in (([0, 1, 2, 3], 0), ([3, 1], 1), ([0, 3], 4), ([2], 2), ([1, 0, 2, 3], 5), ([0, 1, 2, 3], 9)):
        found = caches.next_logits(prefixes[rows, :t], torch.tensor(rows))
        expected = torch.stack([answer(model, prompts[row], prefixes[row, :t]) for row in rows])
        assert torch.equal(found, expected), (rows, t)


def test_every_token_is_fed_once(prefixes):
    model = CountingModel()
    caches = RowCaches(model, [PROMPTS[0]] * 4)
    for rows, t in (([0, 1, 2, 3], 0), ([1, 2], 3), ([1, 2], 3), ([3, 0, 1, 2], 6)):
        caches.next_logits(prefixes[rows, :t], torch.tensor(rows))
    assert model.fed == 4 * (len(PROMPTS[0]) + 6)


def test_a_prefix_cannot_get_shorter(prefixes):
    caches = RowCaches(CountingModel(), [PROMPTS[0]])
    caches.next_logits(prefixes[:1, :4], torch.tensor([0]))
    with pytest.raises(InputError, match="shorter"):
        caches.next_logits(prefixes[:1, :2], torch.tensor([0]))


# ------------------------------------------------------------------------------------------------ the policy
def test_decoder_full_pass_and_score_give_one_law(prefixes):
    policy = PretrainedPolicy(CountingModel(), PROMPTS)
    group = torch.tensor([2, 0, 1, 2])
    laws = policy.at(group).log_probs(prefixes)
    assert torch.allclose(laws.exp().sum(-1), torch.ones(4, 9, dtype=torch.float64))
    decoder, rows = policy.decoder(group), torch.arange(4)
    for t in range(9):
        assert torch.equal(decoder.next_log_probs(prefixes[:, :t], rows), laws[:, t])
        assert torch.equal(policy.at(group).next_log_probs(prefixes[:, :t]), laws[:, t])
    assert torch.equal(policy.at(group).score(prefixes), laws.gather(-1, prefixes[..., None])[..., 0])


def test_the_policy_draws_from_the_law_of_its_prompt():
    policy = PretrainedPolicy(CountingModel(), PROMPTS)
    first = policy.decoder(torch.tensor([1])).next_log_probs(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0]))
    assert torch.equal(first[0], torch.log_softmax(CountingModel().logits(PROMPTS[1]).double(), -1))
    assert 0 <= int(RandomChooser(0).choose(first.exp())) < 7


def test_without_prompts_responses_follow_the_start_token(prefixes):
    laws = PretrainedPolicy(CountingModel()).log_probs(prefixes[:2])
    expected = CountingModel().logits(torch.cat([torch.tensor([pretrained.START]), prefixes[0, :3]]))
    assert torch.equal(laws[0, 3], torch.log_softmax(expected.double(), -1))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: PretrainedPolicy(CountingModel(), [torch.zeros(0, dtype=torch.int64)]), "at least one token"),
        (lambda: PretrainedPolicy(CountingModel(), PROMPTS).at(torch.tensor([3])), "0..2"),
        (lambda: PretrainedPolicy(CountingModel(), PROMPTS).at(torch.tensor([1])).score(torch.zeros(2, 1).long()), "rows"),
        (lambda: PretrainedPolicy(CountingModel()).score_terms(torch.zeros(1, 1).long(), torch.zeros(1, 1)), "gradient"),
        (lambda: load_pretrained("float8"), "float32, bfloat16"),
    ],
)  # fmt: skip
def test_bad_use_is_refused(act, words):
    with pytest.raises(InputError, match=words):
        act()


def test_laws_that_need_gigabytes_are_refused(monkeypatch):
    monkeypatch.setattr(pretrained, "MOST_ENTRIES", 20)
    with pytest.raises(TooLarge, match="at most 20"):
        PretrainedPolicy(CountingModel()).log_probs(torch.zeros(1, 3, dtype=torch.int64))


# ------------------------------------------------------------------------------------------------ weights
def test_rows_of_a_head_are_reordered_from_pairs_to_halves():
    matrix = torch.arange(8.0)[:, None]
    assert halves_first(matrix, heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert halves_first(matrix, heads=1)[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_missing_weights_are_one_sentence_with_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for act in (weights_path, pretrained.pretrained_tokenizer.__wrapped__, load_pretrained):
        with pytest.raises(InputError, match=r"weights must be installed.*make real"):
            act()


def test_a_missing_package_is_one_sentence_with_the_remedy():
    with pytest.raises(InputError, match=r"no_such_package_here must be installed.*make real"):
        optional_module("no_such_package_here")


@pytest.mark.repro
@pytest.mark.timeout(600)
def test_the_real_model_answers_and_its_engines_nearly_agree():
    prompts = [pretrained.chat_prompt("What is 3 + 4? Answer with the number."), pretrained.chat_prompt("Hello")]
    weights = read_llama()
    policy = PretrainedPolicy(load_pretrained(weights=weights), prompts)
    group, tokens = torch.tensor([0, 1]), torch.tensor([[35, 1232, 216, 36], [19556, 17, 1073, 416]])
    decoder, full = policy.decoder(group), policy.at(group).log_probs(tokens)
    for t in (0, 3):
        step = decoder.next_log_probs(tokens[:, :t], torch.arange(2))
        assert torch.allclose(step, full[:, t], rtol=0, atol=1e-3)
    rough = PretrainedPolicy(load_pretrained("bfloat16", weights=weights), prompts).at(group).score(tokens)
    ints = PretrainedPolicy(load_pretrained(int8_weights=True, weights=weights), prompts).at(group).score(tokens)
    exact = policy.at(group).score(tokens)
    assert 0 < float((rough - exact).abs().max()) < 1
    assert 0 < float((ints - exact).abs().max()) < 1
    ids = []
    for _ in range(7):
        prefix = torch.tensor([ids], dtype=torch.int64)
        ids.append(int(policy.at(group[:1]).next_log_probs(prefix)[0].argmax()))
    assert "7" in pretrained.pretrained_tokenizer().decode(ids)
