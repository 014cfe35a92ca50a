"""The engine's output law, every choice replayed, is the enumerated one: caps, end tokens, segments, prompts, caches."""

import pytest
import torch

from testbed import (
    InputError,
    KeyedChooser,
    PrefixSchedule,
    PrefixTree,
    RandomChooser,
    Truncated,
    after_token,
    cuts,
    enumerate_law,
    exogenous_hazard,
    hazard,
    output_law,
)
from testbed.policies.families import logit_noise, mixture
from testbed.policies.marginal import marginal_log_probs
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout import rollout, writers
from tests.rollout.engine_worlds import Cached, Prompted, TwoPrompts, distance, enumerated, random_policies, written

HORIZON = 3
A, B, C, D = random_policies(4)  # three tokens, of which the last may end the response
ASKED, OTHER = Prompted((A, B)), Prompted((C, D))
TARGET = Prompted(random_policies(2, first=7))
SCHEDULES = {
    "one policy": ASKED,
    "two segments": PrefixSchedule((ASKED, OTHER), cuts((1,))),
    "after a token": PrefixSchedule((OTHER, ASKED), after_token(0)),
    "the same policy twice": PrefixSchedule((ASKED, ASKED, C), cuts((1, 2))),
    "exogenous": exogenous_hazard((ASKED, OTHER), 0.3, HORIZON),
    "filtered": PrefixSchedule((Truncated(ASKED, 0.7, top_p=0.9), mixture(OTHER, A, 0.4)), cuts((2,))),
    "noisy": logit_noise(ASKED, 0.5, 3),
}
ENVS = {eos: TwoPrompts(3, HORIZON, rewards=torch.arange(27.0) / 10, eos=eos) for eos in (None, 2)}


def engine_law(env, schedule, group=0, cap=None):
    caps = None if cap is None else torch.tensor([cap])

    def one(chooser):
        return written(rollout(env, schedule, 1, chooser, TARGET, torch.tensor([group]), caps), 0)

    return output_law(one)


def cached(schedule):
    """Give every policy a decoder that answers from memory only."""
    if isinstance(schedule, PrefixSchedule):
        return PrefixSchedule([Cached(policy) for policy in schedule.policies], schedule.segment_of)
    return Cached(schedule)


@pytest.mark.parametrize("cap", [None, 0, 1, 2, 9])
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("eos", ENVS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_choice_against_enumeration(name, eos, group, cap):
    want = enumerated(ENVS[eos], TARGET, SCHEDULES[name], group, cap)
    assert distance(engine_law(ENVS[eos], SCHEDULES[name], group, cap), want) < 1e-12
    other = enumerated(ENVS[eos], TARGET, SCHEDULES[name], 1 - group, cap)
    assert distance(want, other) > 0.1 or cap == 0  # the prompt matters


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "exogenous"])
def test_decoders_that_remember_change_nothing(name):
    want = enumerated(ENVS[2], TARGET, SCHEDULES[name], 1)
    assert distance(engine_law(ENVS[2], cached(SCHEDULES[name]), 1), want) < 1e-12


def test_cached_transformers_write_what_full_passes_enumerate():
    config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=2, hidden=8)
    prompts = torch.tensor([[0, 1], [2, 2]])
    exact = Numerics(reduction="fixed")  # cached steps and full passes then agree bit for bit
    two = [
        TransformerPolicy(Transformer.random(config, seed, sharpness=2.0), prompts, numerics=exact) for seed in (0, 1)
    ]
    schedule = PrefixSchedule((two[0], Truncated(two[1], top_p=0.9)), cuts((1,)))
    want = enumerated(ENVS[2], TARGET, schedule, 1, 3)
    assert distance(engine_law(ENVS[2], schedule, 1, 3), want) < 1e-12
    assert distance(enumerated(ENVS[2], TARGET, schedule, 0, 3), want) > 0.1


def test_responses_of_one_batch_are_independent_with_their_own_prompt_and_cap():
    caps, group = torch.tensor([2, 3]), torch.tensor([1, 0])
    schedule = SCHEDULES["two segments"]

    def both(chooser):
        batch = rollout(ENVS[2], schedule, 2, chooser, TARGET, group, caps)
        return written(batch, 0), written(batch, 1)

    single = [enumerated(ENVS[2], TARGET, schedule, int(group[b]), int(caps[b])) for b in range(2)]
    product = {(x, y): p * q for x, p in single[0].items() for y, q in single[1].items()}
    assert distance(output_law(both), product) < 1e-12
    swapped = {(x, y): p * q for x, p in single[1].items() for y, q in single[0].items()}
    assert distance(output_law(both), swapped) > 0.1


class Renamed:
    """A keyed chooser for a part of a batch: row b of the part is response names[b] of the whole."""

    def __init__(self, inner, names):
        self.inner, self.names = inner, names

    def choose(self, probs, key):
        return self.inner.choose(probs, torch.stack([self.names[key[:, 0]], key[:, 1]], 1))


@pytest.mark.parametrize("eos", ENVS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_paths_survive_permuting_and_splitting_the_batch(name, eos):
    n = 40
    group, caps = torch.arange(n) % 2, torch.arange(n) % 5
    whole = rollout(ENVS[eos], SCHEDULES[name], n, KeyedChooser(3), TARGET, group, caps)
    order = torch.arange(n) * 7 % n
    for names in (order, order[:13], torch.tensor([5]), torch.arange(0, n, 5)):
        chooser = Renamed(KeyedChooser(3), names)
        part = rollout(ENVS[eos], SCHEDULES[name], len(names), chooser, TARGET, group[names], caps[names])
        for field in ("tokens", "mask", "segment", "logp_behavior", "logp_target", "reward", "group"):
            assert torch.equal(getattr(part, field), getattr(whole, field)[names]), field
    assert (whole.lengths <= caps).all() and bool((whole.lengths == caps).any()) and len(whole.lengths.unique()) > 2


@pytest.mark.parametrize(
    "bug",
    [
        lambda self, place, rows, prefix: (
            self.desks[place][1].decoder(self.group).next_log_probs(torch.cat([prefix[:, 1:], prefix[:, :1]], 1), rows)
        ),
        lambda self, place, rows, prefix: self.desks[0][1].decoder(self.group).next_log_probs(prefix, rows),
        lambda self, place, rows, prefix: self.desks[place][1].decoder(0 * self.group).next_log_probs(prefix, rows),
    ],
    ids=["rotated prefix", "first policy writes all", "first prompt"],
)
def test_a_broken_engine_is_noticed(monkeypatch, bug):
    want = enumerated(ENVS[2], TARGET, SCHEDULES["two segments"], 1)
    monkeypatch.setattr(writers.Writers, "_ask", bug)
    assert distance(engine_law(ENVS[2], SCHEDULES["two segments"], 1), want) > 0.05


def test_prompts_reach_rewards_target_and_mixtures():
    group = torch.arange(30) % 2
    both = SCHEDULES["exogenous"]
    batch = rollout(ENVS[None], both, 30, RandomChooser(1), TARGET, group)
    assert torch.equal(batch.group, group)
    assert torch.equal(batch.reward, ENVS[None].reward(batch.tokens, batch.mask, group))
    torch.testing.assert_close(batch.logp_target, TARGET.at(group).score(batch.tokens), rtol=0, atol=0)
    law = enumerate_law(ENVS[None], TARGET, both, group=1)
    assert law.batch.group.unique().tolist() == [1] and float(law.batch.reward.min()) >= 10
    mixed = marginal_log_probs(both, law.batch.tokens, group=law.batch.group).sum(1)
    tokens, rows = torch.unique(law.batch.tokens, dim=0, return_inverse=True)
    summed = torch.zeros(len(tokens), dtype=torch.float64).index_add(0, rows, law.probs)
    torch.testing.assert_close(mixed.exp(), summed[rows], rtol=1e-12, atol=0)


def test_positional_rules_answer_alike_for_all_prefixes():
    for rule in (cuts((1, 3)), hazard(0.5, 2, 2)):
        plain = PrefixSchedule((A, B, C), lambda prefix, rule=rule: rule(prefix))
        quick = PrefixSchedule((A, B, C), rule)
        for t in range(5):
            prefix = torch.randint(3, (20, t), generator=torch.Generator().manual_seed(t))
            assert torch.equal(plain.segments(prefix), quick.segments(prefix))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_tokens": torch.tensor([1, -1])}, "`max_tokens` must be >= 0; found -1"),
        ({"group": torch.tensor([-2, 0])}, "`group` must be >= 0; found -2"),
        ({"max_tokens": torch.tensor([1])}, "`max_tokens`"),
        ({"group": torch.tensor([0, 1, 0])}, "`group`"),
    ],
)
def test_refused_caps_and_prompts(untyped, wrong, words):
    with pytest.raises(InputError, match=words):
        rollout(ENVS[2], A, 2, RandomChooser(0), **wrong)


@pytest.mark.parametrize("group", [-1, 2])
def test_enumeration_refuses_prompts_that_do_not_exist(group):
    with pytest.raises(InputError, match=r"prompt in 0\.\.1"):
        enumerate_law(ENVS[2], TARGET, ASKED, group=group)
    with pytest.raises(InputError, match=r"prompt in 0\.\.0"):
        enumerate_law(PrefixTree.random(3, 3, 5), A, A, group=1)
