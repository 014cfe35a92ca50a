"""The fixed order: cached steps and full passes agree bit for bit, whatever the batch; other orders are noticed."""

import pytest
import torch

from testbed.policies.transformer import Numerics, StepwisePolicy, TransformerPolicy, invariant, operations
from tests.policies.transformer.small_models import CONFIGS, LENGTHS, PROMPTS, model_of, policy_of, responses

KINDS = sorted(CONFIGS)
DTYPES = ("float64", "float32", "bfloat16")
PARTS = {1: [0, 1, 37], 3: [0, 15], 8: [0, 48], 64: [0]}  # batch size -> first rows of the batches tried


def largest_mismatch(kind, dtype, generator, reduction="fixed", sizes=tuple(PARTS)):
    """Largest |log k| over all tokens of the vocabulary, between 64 responses in one pass and other ways to the same laws."""
    tokens, group = responses(64, generator)
    pi = policy_of(kind, dtype=dtype, reduction=reduction)
    with torch.no_grad():
        truth = pi.at(group).log_probs(tokens)
        worst = 0.0
        for size in sizes:
            for part in (slice(start, start + size) for start in PARTS[size]):
                conditioned = pi.at(group[part])
                for law in (conditioned, StepwisePolicy(conditioned)):
                    worst = max(worst, float((law.log_probs(tokens[part]) - truth[part]).abs().max()))
    return worst


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_mismatch_at_all(kind, dtype, generator):
    assert largest_mismatch(kind, dtype, generator) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_librarys_kernels_have_some(kind, generator):
    assert 0 < largest_mismatch(kind, "float32", generator, "library") < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_on_or_off_do_not_matter(kind, generator):
    tokens, group = responses(7, generator)
    pi = policy_of(kind, dtype="float32", reduction="fixed").at(group)
    with torch.no_grad():
        without = pi.log_probs(tokens)
    assert torch.equal(pi.log_probs(tokens).detach(), without)


@pytest.mark.parametrize("weights", ["full", "int8"])
def test_the_same_holds_for_int8_and_a_router_of_its_own(weights, generator):
    tokens, group = responses(6, generator)
    numerics = Numerics(dtype="float32", weights=weights, reduction="fixed", router="low_precision")
    pi = TransformerPolicy(model_of("mixture"), PROMPTS, LENGTHS, numerics).at(group)
    assert torch.equal(StepwisePolicy(pi).log_probs(tokens), pi.log_probs(tokens).detach())


# ------------------------------------------------------------------------------------------------ planted faults
def halves(x):
    """Sum the front half and the back half: where a summand goes depends on how many there are."""
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        rest = x[2 * half :]
        x = torch.cat([x[:half] + x[half : 2 * half], rest])
    return x[0]


def back_to_front(x):
    return invariant_sum(x.flip(0))


def library_matrix_product(x, weight):
    return x @ weight.T


def order_by_batch(x):
    """Sum in another order when many rows share the batch."""
    return invariant_sum(x.flip(0)) if x.dim() > 2 and x.shape[1] > 8 else invariant_sum(x)


invariant_sum = invariant.pairwise_sum
FAULTS = {
    "halves": (invariant, "pairwise_sum", halves),
    "back to front": (invariant, "pairwise_sum", back_to_front),
    "by batch": (invariant, "pairwise_sum", order_by_batch),
    "library product": (operations, "fixed_linear", library_matrix_product),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_another_order_is_noticed(fault, dtype, monkeypatch, generator):
    monkeypatch.setattr(*FAULTS[fault])
    assert largest_mismatch("dense", dtype, generator, sizes=(1, 3)) > 0


# ------------------------------------------------------------------------------------------------ the parts
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 100])
def test_appended_zeros_change_no_bit(length, generator):
    x = torch.randn(length, 5, generator=generator, dtype=torch.float64)
    for more in (1, 2, 5, 64):
        assert torch.equal(
            invariant.pairwise_sum(torch.cat([x, torch.zeros(more, 5).double()])), invariant.pairwise_sum(x)
        )
    torch.testing.assert_close(invariant.pairwise_sum(x), x.sum(0), rtol=1e-12, atol=1e-12)


def test_exp_and_log_are_accurate_to_the_last_bits():
    x = torch.linspace(-700, 700, 100_001, dtype=torch.float64)
    assert ((invariant.fixed_exp(x) - x.exp()) / x.exp()).abs().max() < 4e-16
    s = torch.linspace(0, 10, 100_001, dtype=torch.float64).exp()
    assert (invariant.fixed_log(s, 2**15) - s.log()).abs().max() < 9e-16 * 2
    assert (invariant.fixed_silu(x) - torch.nn.functional.silu(x)).abs().max() < 1e-12


@pytest.mark.parametrize("function", [lambda x: invariant.fixed_exp(x), lambda x: invariant.fixed_log(x, 64)])
def test_an_entry_does_not_depend_on_its_neighbors(function, generator):
    x = 1 + 30 * torch.rand(1003, generator=generator, dtype=torch.float64)
    assert torch.equal(function(x), torch.cat([function(x[i : i + 1]) for i in range(1003)]))


def test_derivatives_of_the_polynomials(generator):
    x = (1 + 5 * torch.rand(50, generator=generator, dtype=torch.float64)).requires_grad_(True)
    (slope,) = torch.autograd.grad(invariant.fixed_exp(x).sum(), x)
    torch.testing.assert_close(slope, x.detach().exp(), rtol=1e-13, atol=0)
    (slope,) = torch.autograd.grad(invariant.fixed_log(x, 8).sum(), x)
    torch.testing.assert_close(slope, 1 / x.detach(), rtol=1e-12, atol=0)
