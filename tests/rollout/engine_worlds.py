"""Worlds and policies the engine's tests share: two prompts, a policy that answers them, a decoder that remembers."""

from __future__ import annotations

import torch

from testbed import PrefixTree, TabularPolicy, enumerate_law
from testbed.policies.base import Decoder, Policy


class TwoPrompts(PrefixTree):
    """A tree whose reward depends on the prompt."""

    n_prompts = 2

    def reward(self, tokens, mask, group):
        return super().reward(tokens, mask, group) + 10.0 * group


class Prompted(Policy):
    """One tabular policy per prompt."""

    def __init__(self, answers, group=None):
        self.answers, self.group, self.vocab_size = answers, group, answers[0].vocab_size

    def at(self, group):
        return Prompted(self.answers, group)

    def next_log_probs(self, prefix):
        assert len(self.group) == len(prefix), "one prompt per row"
        laws = torch.stack([answer.next_log_probs(prefix) for answer in self.answers])
        return laws[self.group, torch.arange(len(prefix))]


class Cached(Policy):
    """A policy whose decoder answers from the tokens it was fed, and counts them."""

    def __init__(self, inner):
        self.inner, self.vocab_size = inner, inner.vocab_size
        self.opened = []

    def at(self, group):
        return self.inner.at(group)

    def next_log_probs(self, prefix):
        raise AssertionError("a cached policy is asked through its decoder")

    def decoder(self, group):
        self.opened.append(self.make(self.inner, group))
        return self.opened[-1]

    def make(self, inner, group):
        return CachedDecoder(inner, group)


class CachedDecoder(Decoder):
    """Keeps the tokens of each row, refuses to see one twice, and conditions on what it kept and on nothing else."""

    def __init__(self, policy, group):
        super().__init__(policy, group)
        self.memory = [[] for _ in group.tolist()]

    def fed(self, row, prefix):
        """Tokens of this row that are not in memory yet."""
        seen = len(self.memory[row])
        assert self.memory[row] == prefix[:seen], "a row's tokens never change once shown"
        assert len(prefix) > seen or not prefix, "a row is asked about once per token"
        return prefix[seen:]

    def next_log_probs(self, prefix, rows):
        assert len(set(rows.tolist())) == len(rows)
        laws = []
        for row, tokens in zip(rows.tolist(), prefix.tolist(), strict=True):
            self.memory[row] += self.fed(row, tokens)
            kept = torch.tensor([self.memory[row]], dtype=torch.int64)
            laws.append(self.policy.at(self.group[[row]]).next_log_probs(kept)[0])
        return torch.stack(laws)


def random_policies(count, vocab_size=3, horizon=3, first=0):
    return tuple(TabularPolicy.random(vocab_size, horizon, first + k) for k in range(count))


def written(batch, b):
    """Return what the sampler recorded of one response: tokens, segments, log-probs."""
    n = int(batch.lengths[b])
    return (
        tuple(batch.tokens[b, :n].tolist()),
        tuple(batch.segment[b, :n].tolist()),
        tuple(round(x, 12) for x in batch.logp_behavior[b, :n].tolist()),
        tuple(round(x, 12) for x in batch.logp_target[b, :n].tolist()),
    )


def enumerated(env, target, schedule, group=0, cap=None):
    """Law of what is recorded, from enumerate_law, every response cut to its first `cap` tokens."""
    law = enumerate_law(env, target, schedule, group=group)
    out = {}
    for b, p in enumerate(law.probs.tolist()):
        key = tuple(part[:cap] for part in written(law.batch, b))
        out[key] = out.get(key, 0.0) + p
    return out


def distance(first, second):
    """Total variation between two laws given as dicts."""
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys()) / 2
