"""Weights between two changes: large matrices are packed, the laws stay what they were, and nobody sees a change too late."""

import copy
import pickle

import pytest
import torch

from testbed.policies.transformer import Numerics, StepwisePolicy, Transformer, TransformerConfig, TransformerPolicy
from testbed.policies.transformer import held_weights as module
from testbed.policies.transformer.held_weights import HeldWeights, packable, packed, packed_product
from testbed.policies.transformer.operations import linear
from tests.policies.transformer.small_models import CONFIGS, policy_of, responses

FLOAT32 = Numerics(dtype="float32")
pytestmark = pytest.mark.skipif(not module._onednn(), reason="this build of PyTorch packs no matrices")


@pytest.fixture
def everything_packed(monkeypatch):
    monkeypatch.setattr(module, "LEAST", 1)


def matrix(rows, columns, generator):
    return torch.randn(rows, columns, generator=generator)


@pytest.mark.parametrize("shape", [(5,), (0, 7), (1, 7), (3, 7), (2, 40, 7)])
def test_a_packed_product_is_the_product(shape, generator):
    weight, x = matrix(11, 7, generator), torch.randn(*shape[:-1], 7, generator=generator)
    torch.testing.assert_close(packed_product(x, packed(weight)), x @ weight.T)
    assert torch.equal(packed(weight).to_dense(), weight)


def test_a_packed_product_has_a_derivative_in_what_it_is_applied_to(generator):
    weight, x = matrix(11, 7, generator), torch.randn(2, 3, 7, generator=generator, requires_grad=True)
    slopes = []
    for product in (packed_product(x, packed(weight)), x @ weight.T):
        slopes.append(torch.autograd.grad(product.pow(2).sum(), x)[0])
    torch.testing.assert_close(*slopes)
    frozen = linear(x, packed(weight), FLOAT32)
    assert frozen.requires_grad and not linear(x.detach(), packed(weight), FLOAT32).requires_grad


def test_only_large_single_precision_matrices_of_the_librarys_order_are_packed():
    large = torch.zeros(400, 400)
    assert packable("layer0.gate", large, FLOAT32) and packable("head", large, FLOAT32)
    for name in ("embedding", "layer0.router", "final_norm"):
        assert not packable(name, large, FLOAT32)
    assert not packable("head", large[:200], FLOAT32)
    assert not packable("head", large.double(), Numerics())
    assert not packable("layer0.gate", large.expand(2, -1, -1), FLOAT32)
    assert not packable("head", large, FLOAT32.but(reduction="fixed"))


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_packed_weights_give_the_same_laws(kind, everything_packed, generator):
    tokens, group = responses(6, generator)
    plain, pi = policy_of(kind).at(group), policy_of(kind, dtype="float32").at(group)
    with torch.no_grad():
        assert pi.weights()["head"].is_mkldnn
        truth = plain.log_probs(tokens)
        for law in (pi, StepwisePolicy(pi)):
            torch.testing.assert_close(law.log_probs(tokens), truth, rtol=0, atol=1e-4)
    with_graph = pi.log_probs(tokens)  # a pass with a graph takes the model's own weights
    assert with_graph.requires_grad and float((with_graph.detach() - truth).abs().max()) < 1e-4


def test_another_matrix_would_be_noticed(everything_packed, monkeypatch, generator):
    monkeypatch.setattr(module, "packed", lambda weight: packed(weight.flip(0)))
    tokens, group = responses(6, generator)
    pi = policy_of("dense", dtype="float32").at(group)
    with torch.no_grad():
        gap = (pi.log_probs(tokens) - policy_of("dense").at(group).log_probs(tokens)).abs().max()
    assert gap > 1e-2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_change_of_the_model_is_seen_by_what_comes_after_it(dtype, everything_packed, generator):
    config = TransformerConfig(vocab_size=5, width=16, heads=2, layers=1, hidden=16)
    model = Transformer.random(config, 0, dtype=getattr(torch, dtype))
    pi, rows = TransformerPolicy(model, numerics=Numerics(dtype=dtype)), torch.arange(2)
    tokens = torch.randint(5, (2, 3), generator=generator)
    decoder = pi.decoder(torch.zeros_like(rows))
    before = pi.decoder(torch.zeros_like(rows)).next_log_probs(tokens, rows)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    assert torch.equal(decoder.next_log_probs(tokens, rows), before)
    assert (pi.decoder(torch.zeros_like(rows)).next_log_probs(tokens, rows) - before).abs().max() > 1e-2


def test_weights_are_made_once_and_shared_by_conditioned_policies(everything_packed):
    pi = policy_of("dense", dtype="float32")
    with torch.no_grad():
        assert pi.at(torch.tensor([0, 1])).weights() is pi.weights()
        assert pi.under(Numerics()).weights() is not pi.weights()


def test_a_policy_that_holds_packed_weights_can_be_copied_and_written_down(everything_packed):
    pi, prefix = policy_of("dense", dtype="float32").at(torch.tensor([2])), torch.tensor([[1, 2]])
    with torch.no_grad():
        expected = pi.next_log_probs(prefix)
        for other in (copy.deepcopy(pi), pickle.loads(pickle.dumps(pi))):
            assert torch.equal(other.next_log_probs(prefix), expected)
    assert HeldWeights().of({}, FLOAT32) == {}
