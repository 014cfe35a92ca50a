"""What the clock's tests share: cheap worlds, systems of every kind, and a run watched by an independent witness."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from testbed import PrefixTree, RandomChooser, TabularPolicy
from testbed.rollout.clock import Clock

WORDS, HORIZON = 3, 4


class ThreePrompts(PrefixTree):
    """Responses of 1 to 4 tokens; one in three is right."""

    n_prompts = 3


def world():
    rewards = [float(leaf % 3 == 0) for leaf in range(WORDS**HORIZON)]
    return ThreePrompts(WORDS, HORIZON, rewards=rewards, eos=1)


def version(number):
    """Policy of a version: each has laws of its own."""
    return TabularPolicy.random(WORDS, HORIZON, number, 0.7)


VERSIONS = [version(number) for number in range(40)]
TIMES = st.sampled_from([0.0, 0.3, 1.0, 2.5, 9.0])


@st.composite
def system_values(draw):
    """Draw the values of a system that contradicts itself nowhere."""
    values = {
        "name": "drawn",
        "deliver": draw(st.sampled_from(["group", "response"])),
        "slots": draw(st.sampled_from([None, 1, 2, 5])),
        "step_seconds": draw(st.sampled_from([0.1, 1.0])),
        "response_seconds": draw(st.sampled_from([0.0, 0.25])),
        "prefill_seconds": draw(st.sampled_from([0.0, 0.1])),
        "update_seconds": draw(TIMES),
        "push_seconds": draw(TIMES),
    }
    kind = draw(st.sampled_from(["rounds", "pinned", "over", "drop", "stream", "queue"]))
    if kind in ("stream", "queue"):
        values |= {"generation": "stream", "push": draw(st.sampled_from(["finish", "recompute"]))}
        values |= {"order": draw(st.sampled_from(["fifo", "finished"]))}
        values |= {"ahead": draw(st.integers(0, 3))} if kind == "stream" else {"queue": draw(st.integers(1, 2))}
    else:
        values |= {"ahead": draw(st.integers(0, 2))}
    if kind == "rounds":
        values |= {"push": draw(st.sampled_from(["finish", "recompute"]))}
    if kind == "pinned":
        values |= {"pinned": True}
    if kind in ("over", "drop"):
        values |= {"start": draw(st.sampled_from([1.3, 2.0])), "order": "finished"}
        values |= {"leftover": "drop"} if kind == "drop" else {"push": "recompute", "refill": draw(st.booleans())}
    if draw(st.booleans()):
        values |= {"replay": draw(st.sampled_from(["uniform", "success"])), "replay_share": 0.4, "replay_batches": 2}
        values |= {
            "eviction": draw(st.sampled_from(["fifo", "random"])),
            "replay_age": draw(st.sampled_from([None, 2])),
        }
    return values


class Witness:
    """A chooser that notes every token drawn, with the moment and the version of the weights at hand."""

    def __init__(self, seed):
        self.inner, self.clock = RandomChooser(seed), None
        self.drawn, self.moments, self.widths = {}, [], []

    def choose(self, probs, key=None):
        taken = self.inner.choose(probs, key)
        tokens = [(tuple(k), t) for k, t in zip(key.tolist(), taken.tolist(), strict=True) if k[1] >= 0]
        for address, token in tokens:
            assert address not in self.drawn, f"token {address} was written twice"
            self.drawn[address] = (token, self.clock.time)
        if tokens:
            self.moments.append(self.clock.time)
            self.widths.append(len(tokens))
        return taken


class Run:
    """Some updates of a system in the cheap world, every delivery kept.

    Policies of the versions are unrelated: what a token was drawn from can be told by its recorded log-probability.
    """

    def __init__(self, system, updates=6, groups=3, size=2, seed=0, versions=VERSIONS):
        self.system, self.groups, self.size, self.versions = system, groups, size, versions
        self.witness = Witness(seed)
        self.clock = Clock(
            system, world(), versions[0], torch.tensor([0, 2, 1]), self.witness, groups=groups, size=size
        )
        self.witness.clock = self.clock
        self.deliveries = []
        for update in range(updates):
            self.deliveries.append(self.clock.next_batch())
            if update < updates - 1:
                self.clock.updated(versions[update + 1])

    def tokens(self, fresh=True):
        """Yield (delivery, row, response, position, token, version, recorded log-prob) of every token delivered."""
        for delivery in self.deliveries:
            b = delivery.batch
            for row, response in enumerate(delivery.response.tolist()):
                if bool(delivery.replayed[row]) != fresh:
                    for t in range(int(b.lengths[row])):
                        address = (delivery, row, response, t)
                        yield *address, int(b.tokens[row, t]), int(b.version[row, t]), float(b.logp_behavior[row, t])
