"""The clock against exact laws and against the plain engine: same bits, same laws, honest records."""

import pytest
import torch

from testbed import (
    ArithmeticTask,
    KeyedChooser,
    PrefixSchedule,
    PrefixTree,
    RandomChooser,
    SeedTree,
    TabularPolicy,
    Transformer,
    TransformerConfig,
    TransformerPolicy,
    Truncated,
    cuts,
    enumerate_law,
    output_law,
    perturb,
)
from testbed.exact.inclusion import inclusion_probabilities, length_law
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.transformer import slot_decoder
from testbed.rollout import rollout
from testbed.rollout.clock import Clock
from testbed.rollout.clockwork.generator import Generator
from testbed.rollout.clockwork.slots import PlainSlots
from testbed.rollout.clockwork.wrapped_slots import NoisySlots, WrappedSlots
from testbed.rollout.cut_batches import finished_first
from testbed.rollout.system import System
from testbed.rollout.systems import SYSTEMS, find_system, steps_off
from tests.rollout.engine_worlds import Prompted

TASK = ArithmeticTask(9)
CONFIG = TransformerConfig(vocab_size=TASK.vocab_size, width=16, heads=2, layers=2, hidden=16, context=10)
ONE = torch.tensor([0])


def answering(seed, dtype=torch.float64):
    """Return a transformer that answers sums, badly."""
    model = Transformer.random(CONFIG, seed=seed, dtype=dtype, sharpness=2.0)
    return TransformerPolicy(model, TASK.prompt_tokens(TASK.prompts()))


def disturbed(seed, dtype=torch.float64):
    """Return the same with noise of its own on the logits, seen through a temperature and a nucleus."""
    noisy = perturb(answering(seed, dtype), Gaussian(0.3), SeedTree("noise")[seed])
    return Truncated(noisy, temperature=0.8, top_p=0.9)


def tiny(seed, kind):
    if kind == "table":
        ends = torch.linspace(0.2, 0.4, 7, dtype=torch.float64)  # by prefix
        ends = 1 - ends if seed else ends
        return TabularPolicy.from_probs(torch.stack([1 - ends, ends], 1))
    config = TransformerConfig(vocab_size=2, width=8, heads=2, layers=1, hidden=8, context=4)
    return TransformerPolicy(Transformer.random(config, seed=seed))


def tree(eos=1):
    return PrefixTree(2, 3, rewards=torch.arange(8.0).tolist(), eos=eos)


class Shifted:
    """A chooser whose responses are numbered from another one on: what the clock calls response 12, `rollout` calls 0."""

    def __init__(self, inner, first):
        self.inner, self.first = inner, first

    def choose(self, probs, key=None):
        return self.inner.choose(probs, key + torch.tensor([self.first, 0]))


# ------------------------------------------------------------------------------------------- the same bits
@pytest.mark.parametrize("system", [SYSTEMS["synchronous"], steps_off(0)], ids=lambda system: system.name)
@pytest.mark.parametrize("make", [answering, disturbed])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_synchronous_is_rollout_bit_for_bit_under_keyed_noise(system, dtype, make):
    prompts, policies = torch.tensor([38, 5, 99, 41, 7]), [make(seed, dtype) for seed in range(4)]
    clock = Clock(system, TASK, policies[0], prompts, KeyedChooser(3), groups=3, size=4)
    for update, pi in enumerate(policies):
        batch = clock.next_batch(target=pi).batch
        group = prompts[(torch.arange(3) + 3 * update) % 5].repeat_interleave(4)
        plain = rollout(TASK, pi, 12, Shifted(KeyedChooser(3), 12 * update), target=pi, group=group)
        for name in ("tokens", "mask", "segment", "logp_behavior", "logp_target", "reward", "group"):
            assert torch.equal(getattr(batch, name), getattr(plain, name)), name
        assert torch.equal(batch.version, torch.where(batch.mask, update, -1))
        if update < 3:
            clock.updated(policies[update + 1])


def test_synchronous_uses_the_stream_as_rollout_does():
    policies, chooser = [TabularPolicy.random(2, 3, seed) for seed in range(3)], RandomChooser(5)
    clock = Clock(SYSTEMS["synchronous"], tree(), policies[0], ONE, 5, groups=6)
    for update, pi in enumerate(policies):
        batch, plain = clock.next_batch().batch, rollout(tree(), pi, 6, chooser)
        assert torch.equal(batch.tokens, plain.tokens) and torch.equal(batch.logp_behavior, plain.logp_behavior)
        clock.updated(policies[min(update + 1, 2)])


def test_prompted_policies_without_a_cache_are_asked_about_their_rows():
    answers = [TabularPolicy.random(2, 3, seed) for seed in (0, 1)]
    env = tree()
    env.n_prompts = 2
    clock = Clock(find_system("dora", slots=3), env, Prompted(answers), torch.tensor([0, 1]), 5, groups=4, size=2)
    for _ in range(3):
        batch = clock.next_batch().batch
        for prompt in (0, 1):
            rows = batch.select(batch.group == prompt)
            scored = torch.where(rows.mask, answers[prompt].score(rows.tokens), 0.0)
            assert torch.allclose(scored, rows.logp_behavior, rtol=0, atol=1e-12)
        clock.updated(Prompted(answers))


# ------------------------------------------------------------------------------------------- the same laws
def second_response(policies, push, update_seconds):
    """Law of the tokens of the second response, which an update interrupts `update_seconds` after it started."""
    system = System(
        name="interrupted", generation="stream", ahead=1, slots=1, push=push, step_seconds=1.0, response_seconds=0.0,
        update_seconds=update_seconds, push_seconds=0.0,
    )  # fmt: skip

    def program(chooser):
        clock = Clock(system, tree(), policies[0], ONE, chooser, groups=1)
        clock.next_batch()
        clock.updated(policies[1])
        batch = clock.next_batch().batch
        length = int(batch.lengths[0])
        return tuple(batch.tokens[0, :length].tolist()), tuple(batch.segment[0, :length].tolist())

    return output_law(program)


def scheduled(policies, cut):
    """Return what the theory says of the schedule that changes policies before position `cut`."""
    law = enumerate_law(tree(), policies[1], PrefixSchedule(policies, cuts([cut])))
    out = {}
    for row, probability in enumerate(law.probs.tolist()):
        length = int(law.batch.lengths[row])
        labels = tuple(label - (cut == 0) for label in law.batch.segment[row, :length].tolist())
        out[tuple(law.batch.tokens[row, :length].tolist()), labels] = probability
    return out


@pytest.mark.parametrize("kind", ["table", "transformer"])
@pytest.mark.parametrize(("update_seconds", "cut"), [(0.0, 0), (0.5, 1), (1.0, 1), (1.5, 2), (2.0, 2), (3.0, 3)])
def test_a_partial_rollout_of_the_clock_is_a_schedule_of_the_theory(kind, update_seconds, cut):
    policies = [tiny(seed, kind) for seed in (0, 1)]
    if update_seconds == 0.0:  # the second response starts before the update does
        cut = 1
    found, expected = second_response(policies, "recompute", update_seconds), scheduled(policies, cut)
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_response_that_finishes_under_its_weights_has_the_law_of_one_policy():
    policies = [tiny(seed, "table") for seed in (0, 1)]
    assert second_response(policies, "finish", 1.0) == pytest.approx(scheduled(policies, 3), abs=1e-12)


def test_a_stale_cache_is_no_schedule():
    policies = [tiny(seed, "transformer") for seed in (0, 1)]
    found, expected = second_response(policies, "stale_cache", 2.0), scheduled(policies, 2)
    assert found.keys() == expected.keys()
    assert sum(abs(found[y] - expected[y]) for y in found) / 2 > 1e-4


def test_weights_that_do_not_arrive_make_another_law(monkeypatch):
    policies = [tiny(seed, "table") for seed in (0, 1)]
    right = Generator.arrive
    monkeypatch.setattr(Generator, "arrive", lambda self, policy: right(self, policies[0]))
    found = second_response(policies, "recompute", 2.0)
    assert found != pytest.approx(scheduled(policies, 2), abs=1e-2)


@pytest.mark.parametrize(("n", "m", "start"), [(3, 2, 1.5), (2, 1, 2.0)])
def test_finished_first_is_the_batch_that_s8_decides(n, m, start):
    pi = TabularPolicy.random(2, 3, 4)
    system = find_system("finished_first", start=start, deliver="response")

    def program(chooser):
        batch = Clock(system, tree(), pi, ONE, chooser, groups=m).next_batch().batch
        return tuple(map(tuple, torch.where(batch.mask, batch.tokens, -1).tolist()))

    def plain(chooser):
        batch = finished_first(tree(), pi, n, m, chooser)
        return tuple(map(tuple, torch.where(batch.mask, batch.tokens, -1).tolist()))

    found = output_law(program)
    assert found == pytest.approx(output_law(plain), abs=1e-12)
    law = enumerate_law(tree(), pi, pi)
    lengths = length_law(law)
    kept = inclusion_probabilities(lengths, n, m)
    for length in range(1, 4):
        share = sum(p * sum(len([x for x in y if x >= 0]) == length for y in rows) for rows, p in found.items())
        assert share == pytest.approx(float(n * lengths[length] * kept[length]), abs=1e-12)


# ------------------------------------------------------------------------------------------- honest records
def stretched(push, make=answering):
    """Deliveries of a stream whose responses are interrupted, with the policies of all versions."""
    system = find_system("areal", push=push, ahead=2, step_seconds=1.0, update_seconds=1.3, push_seconds=0.2, slots=5)
    policies = [make(seed) for seed in range(9)]
    clock = Clock(system, TASK, policies[0], torch.tensor([38, 5, 99]), 3, groups=2, size=2)
    batches = []
    for pi in policies[1:]:
        batches.append(clock.next_batch().batch)
        clock.updated(pi)
    return batches, policies


def misfit(batches, policies):
    """Largest difference between a recorded log-prob and what its recorded version gives the token."""
    worst = 0.0
    for batch in batches:
        scored = torch.stack([pi.at(batch.group).score(batch.tokens).detach() for pi in policies])
        of_version = scored.gather(0, batch.version.clamp(min=0)[None])[0]
        worst = max(worst, float((of_version - batch.logp_behavior)[batch.mask].abs().max()))
    return worst


def several(batches):
    return max(batch.n_segments for batch in batches)


@pytest.mark.parametrize("push", ["finish", "recompute"])
@pytest.mark.parametrize("make", [answering, disturbed])
def test_recorded_log_probs_are_those_of_the_recorded_versions(push, make):
    batches, policies = stretched(push, make)
    assert misfit(batches, policies) < 1e-12
    assert (several(batches) > 1) == (push == "recompute")


@pytest.mark.parametrize("make", [answering, disturbed])
def test_a_stale_cache_records_what_no_version_gave(make):
    batches, policies = stretched("stale_cache", make)
    assert several(batches) > 1 and misfit(batches, policies) > 1e-2
    for batch in batches:  # responses of one version have seen no other
        whole = batch.select((batch.segment <= 0).all(1))
        assert misfit([whole], policies) < 1e-12 if whole.batch_size else True


def test_a_cache_that_is_not_read_again_is_seen(monkeypatch):
    monkeypatch.setattr("testbed.policies.transformer.slot_decoder.SlotDecoder.forget", lambda self: None)
    assert misfit(*stretched("recompute")) > 1e-2


def test_noise_of_an_earlier_version_is_seen(monkeypatch):
    right = WrappedSlots.take
    monkeypatch.setattr(NoisySlots, "take", lambda self, policy: right(self, policy))  # the keys of its noise stay
    assert misfit(*stretched("recompute", disturbed)) > 1e-2


def test_without_a_cache_nothing_is_stale(monkeypatch):
    monkeypatch.setattr(
        "testbed.rollout.clockwork.generator.open_slots", lambda policy, slots, room: PlainSlots(policy, slots, room)
    )
    assert misfit(*stretched("stale_cache")) < 1e-12


@pytest.mark.parametrize("name", ["synchronous", "one_step_off", "areal", "pipeline_rl", "april"])
def test_a_step_is_one_pass_of_the_model(name, monkeypatch):
    passes = []
    right = slot_decoder.residual_stream
    monkeypatch.setattr(slot_decoder, "residual_stream", lambda *given: passes.append(1) or right(*given))
    clock = Clock(find_system(name, step_seconds=0.05), TASK, answering(0), torch.tensor([38, 5]), 3, groups=4, size=2)
    for seed in range(4):
        clock.next_batch()
        clock.updated(answering(seed))
    assert len(passes) == clock.totals["steps"]
