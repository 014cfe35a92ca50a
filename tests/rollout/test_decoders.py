"""Decoders: each token is fed once, whatever leaves the batch or changes hands, and planted cache bugs are noticed."""

import pytest
import torch

from testbed import (
    KeyedChooser,
    MarkovPolicy,
    PrefixSchedule,
    RandomChooser,
    TabularPolicy,
    Truncated,
    cuts,
    output_law,
)
from testbed.core.errors import InputError
from testbed.policies.families import logit_noise, mixture
from testbed.rollout import rollout
from tests.rollout.engine_worlds import (
    Cached,
    CachedDecoder,
    Prompted,
    TwoPrompts,
    distance,
    enumerated,
    random_policies,
    written,
)

HORIZON, N = 5, 60
A, B = random_policies(2, 3, HORIZON)
ENV = TwoPrompts(3, HORIZON, rewards=torch.zeros(3**HORIZON), eos=2)
GROUP = torch.arange(N) % 2
WRAPPED = {
    "bare": lambda policy: policy,
    "filtered": lambda policy: Truncated(policy, 0.8),
    "mixed": lambda policy: mixture(policy, B, 0.3),
    "mixed second": lambda policy: mixture(B, policy, 0.3),
    "noisy": lambda policy: logit_noise(policy, 0.3, 1),
    "twice": lambda policy: Truncated(mixture(policy, B, 0.3), 1.2),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_each_token_but_the_last_is_fed_once(wrap):
    inner = Cached(Prompted((A, B)))
    batch = rollout(ENV, wrap(inner), N, RandomChooser(0), group=GROUP)
    (decoder,) = inner.opened
    for b, memory in enumerate(decoder.memory):
        assert memory == batch.tokens[b, : batch.lengths[b] - 1].tolist()
    plain = rollout(ENV, wrap(Prompted((A, B))), N, RandomChooser(0), group=GROUP)
    assert torch.equal(plain.tokens, batch.tokens) and torch.equal(plain.logp_behavior, batch.logp_behavior)


def test_a_new_writer_is_fed_the_whole_prefix_and_an_old_one_nothing_more():
    first, second = Cached(A), Cached(B)
    batch = rollout(ENV, PrefixSchedule((first, second, first), cuts((2, 3))), N, RandomChooser(0))
    assert len(first.opened) == 2  # what the first segment's cache held is gone when its policy comes back
    for b, length in enumerate(batch.lengths.tolist()):
        tokens = batch.tokens[b].tolist()
        assert first.opened[0].memory[b] == tokens[: min(length - 1, 1)]
        assert second.opened[0].memory[b] == (tokens[:2] if length > 2 else [])
        assert first.opened[1].memory[b] == (tokens[: length - 1] if length > 3 else [])


class LateByOne(CachedDecoder):
    def fed(self, row, prefix):
        return super().fed(row, prefix)[1:] if len(prefix) == 3 else super().fed(row, prefix)


class ForgetsWhatOthersWrote(CachedDecoder):
    def fed(self, row, prefix):
        return prefix[-1:]


class CountsRowsInTheBatch(CachedDecoder):
    def next_log_probs(self, prefix, rows):
        return super().next_log_probs(prefix, torch.arange(len(rows)))


class FirstPrompt(CachedDecoder):
    def __init__(self, policy, group):
        super().__init__(policy, 0 * group)


def two_rows(decoder_class):
    """Law of two responses of different lengths and prompts, with a change of hands after two tokens."""
    env, group, caps = TwoPrompts(3, 4, rewards=torch.zeros(81), eos=2), torch.tensor([1, 0]), torch.tensor([2, 4])
    policies = [Prompted(random_policies(2, 3, 4, first=k)) for k in (10, 20)]

    class Planted(Cached):
        def make(self, inner, group):
            return decoder_class(inner, group)

    def both(chooser):
        schedule = PrefixSchedule([Planted(policy) for policy in policies], cuts((2,)))
        batch = rollout(env, schedule, 2, chooser, policies[0], group, caps)
        return written(batch, 0), written(batch, 1)

    plain = PrefixSchedule(policies, cuts((2,)))
    first, second = (enumerated(env, policies[0], plain, int(group[b]), int(caps[b])) for b in range(2))
    want = {(x, y): p * q for x, p in first.items() for y, q in second.items()}
    return distance(output_law(both), want)


def test_the_sound_cache_passes():
    assert two_rows(CachedDecoder) < 1e-12


@pytest.mark.parametrize("bug", [LateByOne, ForgetsWhatOthersWrote, FirstPrompt, CountsRowsInTheBatch])
def test_a_cache_bug_changes_the_law(bug):
    assert two_rows(bug) > 0.01


POLICIES = {
    "tabular": TabularPolicy.random(3, 6, 0),
    "markov": MarkovPolicy.random(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]), 4, start=1),
}


@pytest.mark.parametrize("name", POLICIES)
def test_running_decoders_equal_their_policies(name, generator):
    """Rows in any order, some skipped for a while and back several tokens longer."""
    policy, tokens = POLICIES[name], torch.randint(3, (12, 6), generator=generator)
    decoder = policy.decoder(torch.zeros(12, dtype=torch.int64))
    for t in range(6):
        rows = torch.randperm(12, generator=generator)[: 12 if t in (0, 5) else 5]
        got = decoder.next_log_probs(tokens[rows, :t], rows)
        assert torch.equal(got, policy.next_log_probs(tokens[rows, :t]))
    nobody = torch.tensor([], dtype=torch.int64)
    assert decoder.next_log_probs(tokens[nobody, :2], nobody).shape == (0, 3)


def test_a_tabular_decoder_ends_at_the_horizon():
    decoder = TabularPolicy.random(2, 2, 0).decoder(torch.tensor([0]))
    with pytest.raises(InputError, match="shorter than the horizon 2"):
        decoder.next_log_probs(torch.tensor([[0, 1]]), torch.tensor([0]))


def test_decoders_keep_a_snapshot_of_no_gradient():
    leaf = torch.zeros(7, 2, dtype=torch.float64, requires_grad=True)
    batch = rollout(TwoPrompts(2, 3, rewards=torch.zeros(8)), TabularPolicy(leaf), 4, KeyedChooser(0))
    assert not batch.logp_behavior.requires_grad
