"""Behavior families: zero knob is the target, the same prefix has the same noise, every law sums to one."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.core.prefix_order import prefixes
from testbed.policies.base import Policy
from testbed.policies.families import logit_noise, mixture, steps_behind, temperature
from testbed.policies.markov import MarkovPolicy
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated

TRANSITION = torch.tensor([[0, 1, 1], [1, 0, 0]])


class Opaque(Policy):
    """Hides a tabular policy's table, so that the wrappers have to work."""

    def __init__(self, inner):
        self.inner, self.vocab_size = inner, inner.vocab_size

    def next_log_probs(self, prefix):
        return self.inner.next_log_probs(prefix)


def everywhere(policy, vocab_size=3, horizon=3):
    nodes = [torch.tensor([p], dtype=torch.int64).reshape(1, -1) for p in prefixes(vocab_size, horizon)]
    return torch.cat([policy.next_log_probs(node) for node in nodes])


@pytest.fixture
def pi():
    return TabularPolicy.random(3, 3, 1)


@pytest.fixture
def other():
    return TabularPolicy.random(3, 3, 2)


@pytest.mark.parametrize(
    "family",
    [
        lambda p: temperature(p, 1.7),
        lambda p: logit_noise(p, 0.8, 4),
        lambda p: mixture(p, TabularPolicy.random(3, 3, 2), 0.3),
    ],
    ids=["temperature", "logit_noise", "mixture"],
)
def test_tabular_result_equals_the_wrapper_and_is_a_law(family, pi):
    tabular, wrapped = family(pi), family(Opaque(pi))
    assert isinstance(tabular, TabularPolicy) and not isinstance(wrapped, TabularPolicy)
    torch.testing.assert_close(everywhere(tabular), everywhere(wrapped), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(tabular.table.exp().sum(-1), torch.ones(13).double(), rtol=0, atol=1e-14)
    assert (tabular.table - pi.table).abs().max() > 0.05


def test_temperature_divides_logits(pi):
    torch.testing.assert_close(temperature(pi, 2.0).table, torch.log_softmax(pi.logits / 2, -1), rtol=1e-13, atol=1e-14)


def test_zero_knobs_are_the_policy(pi, other):
    for same in (temperature(pi, 1.0), logit_noise(pi, 0.0, 9), mixture(pi, other, 0.0)):
        torch.testing.assert_close(same.table, pi.table, rtol=0, atol=1e-15)
    torch.testing.assert_close(mixture(pi, other, 1.0).table, other.table, rtol=0, atol=1e-15)


def test_noise_belongs_to_the_prefix(pi):
    long = TabularPolicy(torch.zeros(40, 3))
    short = TabularPolicy(torch.zeros(13, 3))
    assert torch.equal(logit_noise(long, 0.5, 4).table[:13], logit_noise(short, 0.5, 4).table)
    table = logit_noise(short, 0.5, 4).table
    assert len({tuple(row) for row in table.tolist()}) == 13  # no two prefixes share their noise
    assert not torch.equal(table, logit_noise(short, 0.5, 5).table)
    noisy = logit_noise(Opaque(pi), 0.5, 4)
    twice = noisy.next_log_probs(torch.tensor([[1, 2], [0, 0], [1, 2]]))
    assert torch.equal(twice[0], twice[2])
    assert torch.equal(twice[[1]], noisy.next_log_probs(torch.tensor([[0, 0]])))


def test_sigma_scales_one_direction():
    flat = TabularPolicy(torch.zeros(4, 3))
    gaps = [torch.diff(logit_noise(flat, sigma, 4).table) for sigma in (0.5, 1.0)]
    torch.testing.assert_close(gaps[1], 2 * gaps[0], rtol=1e-12, atol=1e-13)


def test_noise_has_unit_scale():
    # over n prefixes the mean square of a standard normal has sd sqrt(2/n), its mean sd sqrt(1/n); 8 sd, so odds about 1e-14
    flat = TabularPolicy(torch.zeros(2**14 - 1, 2))
    gap = torch.diff(logit_noise(flat, 1.0, 0).table)[:, 0] / 2**0.5
    n = gap.numel()
    assert abs(float(gap.square().mean()) - 1) < 8 * (2 / n) ** 0.5
    assert abs(float(gap.mean())) < 8 / n**0.5


def test_markov_policies_stay_markov():
    pi, mu = MarkovPolicy.random(TRANSITION, 1), MarkovPolicy.random(TRANSITION, 2)
    for made in (temperature(pi, 2.0), logit_noise(pi, 0.3, 1), mixture(pi, mu, 0.5)):
        assert isinstance(made, MarkovPolicy) and torch.equal(made.transition, TRANSITION)
    torch.testing.assert_close(mixture(pi, mu, 0.25).table.exp(), 0.75 * pi.table.exp() + 0.25 * mu.table.exp())
    elsewhere = MarkovPolicy(mu.logits, TRANSITION, start=1)
    assert not isinstance(mixture(pi, elsewhere, 0.5), MarkovPolicy)
    prefix = torch.tensor([[1]])
    expected = (pi.next_log_probs(prefix).exp() + elsewhere.next_log_probs(prefix).exp()) / 2
    torch.testing.assert_close(mixture(pi, elsewhere, 0.5).next_log_probs(prefix).exp(), expected)


def test_mixture_repairs_support_and_keeps_shared_zeros():
    p = TabularPolicy.from_probs(torch.tensor([[1.0, 0.0, 0.0]]))
    q = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0, 0.0]]))
    mixed = mixture(p, q, 0.25).table.exp()
    torch.testing.assert_close(mixed, torch.tensor([[0.75, 0.25, 0.0]]).double(), rtol=1e-14, atol=0)


def test_wrapped_temperature_is_a_truncated_policy(pi):
    assert isinstance(temperature(Opaque(pi), 0.5), Truncated)


def test_steps_behind_counts_from_the_last():
    history = ["a", "b", "c"]
    assert [steps_behind(history, k) for k in range(3)] == ["c", "b", "a"]
    for k in (-1, 3):
        with pytest.raises(InputError, match=r"`k` must lie in 0\.\.2"):
            steps_behind(history, k)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: temperature(p, 0.0), "temperature"),
        (lambda p: logit_noise(p, -0.1, 0), "sigma"),
        (lambda p: logit_noise(p, float("nan"), 0), "sigma"),
        (lambda p: mixture(p, p, 1.1), "weight"),
        (lambda p: mixture(p, TabularPolicy(torch.zeros(1, 2)), 0.5), "vocabulary"),
    ],
)
def test_bad_knobs_are_refused(make, name, pi):
    with pytest.raises(InputError, match=name):
        make(pi)
