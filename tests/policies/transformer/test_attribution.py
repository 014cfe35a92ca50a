"""Attribution: what must be zero is, coarser numbers cause more mismatch than finer ones, and flips are counted."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, attribute
from testbed.policies.transformer.attribution import compare
from tests.policies.transformer.small_models import policy_of, responses

SAMPLER = Numerics(dtype="bfloat16", weights="int8", reduction="split", router="noisy", router_noise=0.3)


@pytest.fixture
def measured(generator):
    tokens, group = responses(24, generator)
    mask = torch.arange(5) < 1 + torch.arange(24)[:, None] % 5
    found = attribute(policy_of("mixture", dtype="float32").at(group), SAMPLER, tokens, mask)
    return {m.ingredient: m for m in found}


def test_the_order_that_holds_by_construction(measured):
    names = ["none", "dtype", "weights", "reduction", "router", "cache", "all", "all, replayed", "fixed"]
    assert list(measured) == names
    largest = {name: m.largest_log_ratio for name, m in measured.items()}
    assert largest["none"] == largest["fixed"] == 0
    for fine in ("reduction", "cache"):
        assert 0 < largest[fine] < 1e-4
        for coarse in ("dtype", "weights", "router", "all"):
            assert 10 * largest[fine] < largest[coarse]
    assert all((m.sd_displacement > 0) == (m.largest_log_ratio > 0) == (m.kl > 0) for m in measured.values())


def test_flips_are_a_partition_of_the_tokens(measured):
    for m in measured.values():
        assert sum(m.flips) == m.tokens == 70  # the mask's count
        assert len(m.flips) == len(m.sd_by_flips) == 3
    for exact in ("none", "fixed", "all, replayed"):
        assert measured[exact].flips == (70, 0, 0)
    assert sum(measured["router"].flips[1:]) > 0
    assert measured["all, replayed"].sd_displacement > 0  # replay cannot remove all mismatch


def test_a_dense_model_has_no_routes(generator):
    tokens, group = responses(4, generator)
    found = attribute(policy_of("dense", dtype="float32").at(group), SAMPLER, tokens)
    assert [m.ingredient for m in found] == ["none", "dtype", "weights", "reduction", "cache", "all", "fixed"]
    assert all(m.flips == () for m in found)


def test_finer_formats_mismatch_less(generator):
    tokens, group = responses(24, generator)
    trainer = policy_of("dense", cached=False).at(group)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    sd = [
        compare(dtype, trainer, trainer.under(Numerics(dtype=dtype)), tokens, mask).sd_displacement
        for dtype in ("float64", "float32", "float16", "bfloat16")
    ]
    assert 100 * sd[0] < sd[1] and 100 * sd[1] < sd[2] and 2 * sd[2] < sd[3]


def test_refusals(generator):
    tokens, group = responses(4, generator)
    pi = policy_of("dense").at(group)
    with pytest.raises(InputError, match="`mask` must select a token"):
        attribute(pi, SAMPLER, tokens, torch.zeros(4, 5, dtype=torch.bool))
