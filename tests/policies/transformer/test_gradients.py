"""Gradients per response: equal to autograd, to finite differences and, averaged over the law, to the gradient of J."""

import pytest
import torch

from testbed import PrefixTree, TabularPolicy, enumerate_law, gradient_terms, moments
from testbed.core.errors import InputError, TooLarge
from testbed.exact.gradients import exact_gradient
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy, response_gradients
from testbed.policies.transformer.model import flatten
from tests.policies.transformer.small_models import CONFIGS, model_of, policy_of, responses

TINY = {
    "dense": TransformerConfig(vocab_size=3, width=8, layers=1, heads=2, hidden=8),
    "mixture": TransformerConfig(vocab_size=3, width=8, layers=1, heads=2, hidden=4, experts=8),
}


@pytest.mark.parametrize("reduction", ["library", "fixed"])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_terms_equal_autograd(kind, reduction, generator):
    tokens, group = responses(4, generator)
    coefficient = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    pi = policy_of(kind, reduction=reduction).at(group)
    terms = pi.score_terms(tokens, coefficient)
    for row, term in zip((coefficient * pi.score(tokens)).sum(1), terms, strict=True):
        expected = flatten(torch.autograd.grad(row, pi.parameters(), retain_graph=True))
        torch.testing.assert_close(term, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_terms_equal_finite_differences(kind, generator):
    tokens, _ = responses(3, generator)
    coefficient = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    model = model_of(kind)
    terms = TransformerPolicy(model).score_terms(tokens, coefficient)
    vector, h = model.vector(), 1e-5
    for _ in range(4):
        direction = torch.randn(len(vector), generator=generator, dtype=torch.float64)
        direction /= direction.norm()
        ends = [TransformerPolicy(model.with_vector(vector + s * h * direction)).score(tokens) for s in (1, -1)]
        slope = (coefficient * (ends[0] - ends[1]).detach()).sum(1) / (2 * h)
        torch.testing.assert_close(terms @ direction, slope, rtol=1e-6, atol=1e-7)


def test_zero_coefficients_silence_padding(generator):
    tokens, group = responses(3, generator)
    coefficient = torch.ones(3, 5, dtype=torch.float64)
    coefficient[:, 3:] = 0
    other = tokens.clone()
    other[:, 3:] = (other[:, 3:] + 1) % 7
    pi = policy_of("mixture").at(group)
    torch.testing.assert_close(
        pi.score_terms(tokens, coefficient), pi.score_terms(other, coefficient), rtol=0, atol=1e-13
    )


def test_rows_at_once_do_not_matter(monkeypatch, generator):
    tokens, group = responses(5, generator)
    coefficient = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    pi = policy_of("dense").at(group)
    together = pi.score_terms(tokens, coefficient)
    monkeypatch.setattr(response_gradients, "AT_ONCE", 2 * pi.model.parameter_count)
    torch.testing.assert_close(pi.score_terms(tokens, coefficient), together, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", sorted(TINY))
def test_the_weighted_estimator_is_the_gradient_of_the_objective(kind, generator):
    rewards = torch.randn(27, generator=generator, dtype=torch.float64)
    env = PrefixTree(3, 3, rewards=rewards)
    target, behavior = (TransformerPolicy(Transformer.random(TINY[kind], seed, sharpness=2.0)) for seed in (1, 2))
    law = enumerate_law(env, target, behavior)
    product = (law.batch.logp_target - law.batch.logp_behavior).sum(1, keepdim=True).exp().expand(-1, 3)
    mean = moments(law, gradient_terms(law.batch, product, target)).mean
    gradient = exact_gradient(env, target)
    torch.testing.assert_close(mean, gradient, rtol=1e-10, atol=1e-12)
    assert gradient.norm() > 1e-2
    plain = moments(law, gradient_terms(law.batch, torch.ones(27, 3), target)).mean
    assert (plain - gradient).norm() > 1e-2 * gradient.norm()  # without the weight it is another vector


def test_the_exact_gradient_is_that_of_the_tree(generator):
    """Through the chain rule from the tabular policy with the same laws."""
    env = PrefixTree(3, 3, rewards=torch.randn(27, generator=generator, dtype=torch.float64))
    pi = TransformerPolicy(Transformer.random(TINY["dense"], 1))
    prefixes = [torch.cartesian_prod(*[torch.arange(3)] * t).reshape(-1, t) for t in (1, 2)]
    tables = [pi.next_log_probs(torch.zeros(1, 0, dtype=torch.int64)), *(pi.next_log_probs(p) for p in prefixes)]
    table = torch.cat(tables)
    in_logits = exact_gradient(env, TabularPolicy(table.detach()))
    chained = flatten(torch.autograd.grad((table * in_logits).sum(), pi.parameters()))
    torch.testing.assert_close(exact_gradient(env, pi), chained, rtol=1e-10, atol=1e-12)


def test_refusals():
    env = PrefixTree(3, 2, rewards=torch.zeros(9))
    pi = TransformerPolicy(Transformer.random(TINY["dense"], 1))
    with pytest.raises(InputError, match="taken by autograd"):
        exact_gradient(env, pi, "closed_form")
    with pytest.raises(InputError, match="or a transformer"):
        exact_gradient(PrefixTree(2, 2, rewards=torch.zeros(4)), pi)
    big = torch.zeros(1, 1, dtype=torch.int64).expand(2**20, 1)
    with pytest.raises(TooLarge, match="gradients per response"):
        pi.score_terms(big, torch.zeros(2**20, 1))
