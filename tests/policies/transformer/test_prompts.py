"""Prompts: padding never reaches a number, rows answer their own prompt, bad prompts are refused."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, StepwisePolicy, TransformerPolicy
from tests.policies.transformer.small_models import CONFIGS, LENGTHS, PROMPTS, model_of, policy_of, responses


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_what_stands_beyond_a_length_is_never_read(kind, generator):
    tokens, group = responses(8, generator)
    garbage = torch.where(torch.arange(4) < LENGTHS[:, None], PROMPTS, 10**6)
    model = model_of(kind)
    clean, dirty = (TransformerPolicy(model, p, LENGTHS).at(group) for p in (PROMPTS, garbage))
    coefficient = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    assert torch.equal(clean.log_probs(tokens), dirty.log_probs(tokens))
    assert torch.equal(clean.score_terms(tokens, coefficient), dirty.score_terms(tokens, coefficient))
    steps = [StepwisePolicy(pi).log_probs(tokens) for pi in (clean, dirty)]
    assert torch.equal(*steps)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_short_prompt_among_long_ones_is_as_if_alone(kind, generator):
    tokens, _ = responses(5, generator)
    model, numerics = model_of(kind), Numerics(reduction="fixed")
    together = TransformerPolicy(model, PROMPTS, LENGTHS, numerics).at(torch.arange(5)).log_probs(tokens)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = TransformerPolicy(model, PROMPTS[row : row + 1, :length], numerics=numerics)
        assert torch.equal(alone.log_probs(tokens[row : row + 1])[0], together[row])


def test_the_prompt_matters(generator):
    tokens, _ = responses(1, generator)
    same = tokens.expand(5, -1)
    laws = policy_of("dense").at(torch.arange(5)).log_probs(same)
    for a in range(5):
        for b in range(a):
            assert (laws[a] - laws[b]).abs().amax(-1).min() > 1e-3


def test_no_prompt_is_an_empty_prompt(generator):
    tokens, _ = responses(3, generator)
    model = model_of("dense")
    bare = TransformerPolicy(model)
    empty = TransformerPolicy(model, PROMPTS, LENGTHS).at(torch.full((3,), 2))
    torch.testing.assert_close(bare.log_probs(tokens), empty.log_probs(tokens), rtol=0, atol=1e-12)
    assert bare.at(torch.tensor([4, 0, 9])) is bare  # without prompts, a group says nothing


def test_conditioning_is_checked(generator):
    tokens, group = responses(3, generator)
    pi = policy_of("dense")
    with pytest.raises(InputError, match=r"ask policy.at"):
        pi.log_probs(tokens)
    with pytest.raises(InputError, match=r"prompt numbers must lie in 0..4"):
        pi.at(torch.tensor([5]))
    with pytest.raises(InputError, match="the prompts of 3 rows; found 2 rows"):
        pi.at(group).log_probs(tokens[:2])
    assert pi.at(group).at(group).group is not None
    with pytest.raises(InputError, match="conditioned on its prompts once"):
        pi.at(group).at(group + 1)


@pytest.mark.parametrize(
    ("prompts", "lengths", "message"),
    [
        (torch.zeros(3), None, "`prompts` must be integers"),
        (torch.zeros(2, 3), None, "`prompts` must be integers"),
        (torch.tensor([[7]]), None, r"prompt tokens must lie in 0..6; found 7..7"),
        (torch.tensor([[1, 2]]), torch.tensor([3]), r"`lengths` must lie in 0..2"),
        (torch.tensor([[1, 2]]), torch.tensor([1, 1]), "`lengths` must have shape"),
    ],
)
def test_bad_prompts_are_refused(prompts, lengths, message):
    with pytest.raises(InputError, match=message):
        TransformerPolicy(model_of("dense"), prompts, lengths)
