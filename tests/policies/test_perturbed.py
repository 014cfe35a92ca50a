"""Perturbed policies: one law, the same noise whenever a prefix is asked for, the same numbers by every route."""

import hashlib

import pytest
import torch

from testbed.core.errors import InputError
from testbed.core.prefix_order import prefixes
from testbed.core.seeds import SeedTree, seed_of
from testbed.policies.base import Policy
from testbed.policies.families import logit_noise
from testbed.policies.markov import MarkovPolicy
from testbed.policies.noise.calibration import confident_moe_noise, dense_noise, moe_noise
from testbed.policies.noise.common_mode import CommonMode
from testbed.policies.noise.confidence import ConfidenceScaled
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.rounding import Rounding
from testbed.policies.noise.streams import NoiseStreams, PrefixKey
from testbed.policies.noise.student import StudentT
from testbed.policies.perturbed import Perturbed, perturb
from testbed.policies.tabular import TabularPolicy

TRANSITION = torch.tensor([[0, 1, 1], [1, 0, 0]])
NOISES = {
    "gaussian": Gaussian(0.8),
    "laplace": Laplace(0.6),
    "student": StudentT(0.5, 2.5),
    "common_mode": CommonMode(Laplace(0.6), 0.3),
    "confident": ConfidenceScaled(Gaussian(0.5), 0.4),
    "rounding": Rounding("bfloat16", 40.0),
    "dense": dense_noise(),
    "moe": moe_noise(),
    "confident_moe": confident_moe_noise(),
}


class Opaque(Policy):
    """Hides a tabular policy's table; with prompts, prompt g tilts the first token's logit by g."""

    def __init__(self, inner, group=None, prompts=False):
        self.inner, self.group, self.prompts, self.vocab_size = inner, group, prompts, inner.vocab_size

    def next_log_probs(self, prefix):
        law = self.inner.next_log_probs(prefix).clone()
        if self.group is not None:
            law[:, 0] += self.group
        return torch.log_softmax(law, -1)

    def at(self, group):
        return Opaque(self.inner, group, True) if self.prompts else self


@pytest.fixture
def pi():
    return TabularPolicy.random(3, 3, 1)


@pytest.fixture(params=NOISES)
def noise(request):
    return NOISES[request.param]


def test_tabular_is_the_wrapper_prefix_by_prefix_and_a_law(pi, noise):
    tabular, wrapped = perturb(pi, noise, 4), perturb(Opaque(pi), noise, 4)
    assert isinstance(tabular, TabularPolicy) and isinstance(wrapped, Perturbed)
    nodes = [torch.tensor([p], dtype=torch.int64).reshape(1, -1) for p in prefixes(3, 3)]
    torch.testing.assert_close(
        tabular.table, torch.cat([wrapped.next_log_probs(h) for h in nodes]), rtol=1e-12, atol=1e-13
    )
    torch.testing.assert_close(tabular.table.exp().sum(-1), torch.ones(13).double(), rtol=0, atol=1e-14)
    assert (tabular.table - pi.table).abs().max() > 0.01


def test_every_route_to_a_prefix_meets_the_same_noise(pi, noise):
    mu = perturb(Opaque(pi), noise, SeedTree("route")["a"])
    tokens = torch.tensor([[1, 2, 0], [0, 0, 1], [1, 2, 2]])
    whole = mu.log_probs(tokens)
    decoder = mu.decoder(torch.zeros(3, dtype=torch.int64))
    for t in range(3):
        law = mu.next_log_probs(tokens[:, :t])
        assert torch.equal(whole[:, t], law)
        rows = torch.tensor([2, 0, 1]) if t != 1 else torch.tensor([2])  # rows 0 and 1 catch up by two tokens
        assert torch.equal(decoder.next_log_probs(tokens[rows, :t], rows), law[rows])
    assert torch.equal(whole[0, 2], whole[2, 2])
    assert torch.equal(mu.next_log_probs(tokens[[1], :2]), whole[[1], 2])


def test_other_prefixes_and_seeds_have_other_noise():
    flat = TabularPolicy(torch.zeros(13, 3))
    for noise in (Gaussian(0.5), Laplace(0.5), moe_noise()):
        table = perturb(flat, noise, 4).table
        assert len({tuple(row) for row in table.tolist()}) == 13
        assert not torch.equal(table, perturb(flat, noise, 5).table)


def test_every_prompt_has_noise_of_its_own(pi):
    group = torch.tensor([0, 1, 1])
    mu = perturb(Opaque(pi, prompts=True), Gaussian(0.7), 4)
    empty = torch.empty(3, 0, dtype=torch.int64)
    law = mu.at(group).next_log_probs(empty)
    delta = law - Opaque(pi, group).next_log_probs(empty)
    delta = delta - delta[:, :1]
    assert torch.equal(law[1], law[2])
    assert (delta[0] - delta[1]).abs().max() > 0.01
    rows = torch.tensor([2, 0])
    assert torch.equal(mu.decoder(group).next_log_probs(empty[rows], rows), law[rows])
    with pytest.raises(InputError, match=r"`group` must have shape \(2,\)"):
        mu.at(group).next_log_probs(empty[:2])


def test_markov_stays_markov_with_one_noise_per_state(noise):
    pi = MarkovPolicy.random(TRANSITION, 1)
    mu = perturb(pi, noise, 4)
    assert isinstance(mu, MarkovPolicy) and mu.same_states(pi)
    torch.testing.assert_close(mu.table.exp().sum(-1), torch.ones(2).double(), rtol=0, atol=1e-14)
    assert (mu.table - pi.table).abs().max() > 1e-3


def test_forbidden_tokens_stay_forbidden(noise):
    pi = TabularPolicy.from_probs(torch.tensor([[0.0, 0.6, 0.4]], dtype=torch.float64))
    for mu in (perturb(pi, noise, 4), perturb(Opaque(pi), noise, 4)):
        law = mu.next_log_probs(torch.empty(1, 0, dtype=torch.int64))[0].exp()
        assert law[0] == 0 and float(law.sum()) == pytest.approx(1, abs=1e-14) and 0 < law[1] < 1


def test_logit_noise_is_the_gaussian_member_with_the_addresses_numbers(pi):
    assert torch.equal(logit_noise(pi, 0.8, 4).table, perturb(pi, Gaussian(0.8), 4).table)
    address = b"4\x1flogit_noise\x1fprefix\x1f(1,)"
    seed = int.from_bytes(hashlib.sha256(address).digest()[:8], "big") >> 1
    z = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.log_softmax(pi.table[2] + 0.8 * z, -1)
    assert torch.equal(logit_noise(pi, 0.8, 4).table[2], expected)


@pytest.mark.parametrize("prefix", [(), (7,), (7, 0), (10, 11, 12)])
def test_a_growing_key_is_the_address_of_the_prefix(prefix):
    tree = SeedTree("keys")["prefix"]
    grown = PrefixKey.of(tree)
    for token in prefix:
        grown = grown.then([token])
    at_once = PrefixKey.of(tree).then(list(prefix)).then([])
    expected = tree[str(prefix)].integer()
    assert seed_of(grown.state()) == seed_of(at_once.state()) == expected
    (of_keys,) = NoiseStreams.of(tree, [prefix]).states
    assert seed_of(of_keys) == expected


def test_streams_of_a_row_are_not_each_other():
    streams = NoiseStreams.of(SeedTree("rows"), [(0,), (1,)])
    drawn = torch.stack([s.uniform(4) for s in (streams, streams.child("a"), streams.child("b"))])
    assert len(set(drawn.flatten().tolist())) == 24
    assert torch.equal(streams.child("a").uniform(4), drawn[1])


def test_uniforms_never_reach_their_ends(monkeypatch):
    for end in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(torch, "rand", lambda size, end=end, **_: torch.full((size,), end, dtype=torch.float64))
        u = NoiseStreams.of(SeedTree("ends"), [()]).uniform(3)
        assert bool(((u > 0) & (u < 1)).all())
        for law in (Laplace(1.0), StudentT(1.0, 3.0)):
            delta = law.draw(NoiseStreams.of(SeedTree("ends"), [()]), torch.zeros(1, 3).double())
            assert bool(torch.isfinite(delta).all()) and bool((delta.sign() == (-1 if end == 0 else 1)).all())
