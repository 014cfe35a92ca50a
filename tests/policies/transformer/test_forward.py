"""The forward pass: equal to one written with loops, causal, positions relative, experts' shares sum to one."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.policies.transformer.attention import rotated, rotations
from testbed.policies.transformer.experts import chosen_experts, expert_shares
from tests.policies.transformer.small_models import (
    CONFIGS,
    DENSE,
    LENGTHS,
    PROMPTS,
    V,
    model_of,
    plain_laws,
    policy_of,
    responses,
)

KINDS = sorted(CONFIGS)


@pytest.mark.parametrize("reduction", ["library", "fixed", "split", "reversed"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_order_of_summation_computes_the_same_function(kind, reduction, generator):
    tokens, _ = responses(5, generator)
    laws = policy_of(kind, reduction=reduction).at(torch.arange(5)).log_probs(tokens)
    for row in range(5):
        context = [V, *PROMPTS[row, : LENGTHS[row]].tolist(), *tokens[row, :-1].tolist()]
        expected = plain_laws(model_of(kind), context)[LENGTHS[row] :]
        torch.testing.assert_close(laws[row], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_law_does_not_see_what_comes_later(kind, generator):
    tokens, group = responses(4, generator)
    pi = policy_of(kind, reduction="fixed").at(group)
    other = tokens.clone()
    other[:, 2:] = (other[:, 2:] + 1) % V
    before, after = pi.log_probs(tokens), pi.log_probs(other)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(-1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_laws_are_normalized_in_every_format(kind, generator):
    tokens, group = responses(6, generator)
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        laws = policy_of(kind, dtype=dtype).at(group).log_probs(tokens)
        assert laws.dtype == torch.float64
        torch.testing.assert_close(laws.exp().sum(-1), torch.ones(6, 5).double(), rtol=0, atol=1e-14)


def test_rotary_products_depend_on_the_distance_only(generator):
    query, key = torch.randn(2, 1, 1, 2, 8, generator=generator, dtype=torch.float64)

    def product(m, n):
        turns = (rotations(torch.tensor([[at]]), DENSE, Numerics()) for at in (m, n))
        q, k = (rotated(x, turn, Numerics()) for x, turn in zip((query, key), turns, strict=True))
        return (q * k).sum(-1)

    for shift in (1, 5, 60):
        torch.testing.assert_close(product(7 + shift, 3 + shift), product(7, 3), rtol=0, atol=1e-12)
    assert (product(7, 3) - product(7, 4)).abs().min() > 1e-6
    torch.testing.assert_close(product(3, 3), (query * key).sum(-1), rtol=0, atol=1e-12)


def test_two_experts_share_each_token(generator):
    logits = torch.randn(3, 4, 8, generator=generator, dtype=torch.float64)
    for reduction in ("library", "fixed"):
        share = expert_shares(logits, chosen_experts(logits, 2), Numerics(reduction=reduction))
        torch.testing.assert_close(share.sum(-1), torch.ones(3, 4).double(), rtol=0, atol=1e-15)
        assert torch.equal((share > 0).sum(-1), torch.full((3, 4), 2))
        assert torch.equal(share.argmax(-1), logits.argmax(-1))
        pair = logits.gather(-1, chosen_experts(logits, 2))
        odds = share.gather(-1, chosen_experts(logits, 2)).log()
        torch.testing.assert_close(odds[..., 0] - odds[..., 1], pair[..., 0] - pair[..., 1], rtol=1e-12, atol=1e-12)


def test_a_longer_response_changes_nothing_before_it(generator):
    tokens, group = responses(3, generator, length=9)
    pi = policy_of("mixture", reduction="fixed").at(group)
    assert torch.equal(pi.log_probs(tokens)[:, :4], pi.log_probs(tokens[:, :4]))
    assert torch.equal(pi.next_log_probs(tokens[:, :6]), pi.log_probs(tokens)[:, 6])


def test_a_context_that_does_not_fit_is_refused():
    config = TransformerConfig(vocab_size=V, width=8, heads=2, layers=1, hidden=8, context=4)
    pi = TransformerPolicy(Transformer.random(config, 0))
    assert pi.log_probs(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, V)
    with pytest.raises(InputError, match="must fit 4 positions; found 5"):
        pi.log_probs(torch.zeros(1, 5, dtype=torch.int64))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 12, "heads": 4}, "`width` must be a multiple"),
        ({"layers": 0}, "`layers` must be >= 1"),
        ({"experts": 1}, "`experts` must be 0 or at least 2"),
        ({"rope_base": 0.0}, "must be > 0"),
    ],
)
def test_bad_sizes_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        TransformerConfig(**({"vocab_size": 3} | sizes))
