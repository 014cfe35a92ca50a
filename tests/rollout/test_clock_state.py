"""Stopping and going on: at any moment, with any system, the same deliveries bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import KeyedChooser, RandomChooser, ReplayChooser
from testbed.core.errors import InputError
from testbed.policies.transformer.slot_decoder import SlotDecoder
from testbed.rollout.clock import Clock
from testbed.rollout.clockwork import choosers
from testbed.rollout.clockwork.admission import Admission
from testbed.rollout.clockwork.backlog import Backlog
from testbed.rollout.clockwork.generator import Generator
from testbed.rollout.clockwork.response_table import ResponseTable
from testbed.rollout.clockwork.shelf import Shelf
from testbed.rollout.clockwork.wrapped_slots import NoisySlots
from testbed.rollout.system import System
from testbed.rollout.systems import SYSTEMS, find_system
from tests.rollout.clock_checks import same
from tests.rollout.clock_worlds import VERSIONS, system_values, world
from tests.rollout.engine_worlds import Prompted
from tests.rollout.test_clock_law import TASK, answering, disturbed

ANSWERING = [answering(seed) for seed in range(12)]


def deliveries(clock, policies, count, stop=None, between=False, path=None, fresh=None):
    """Take `count` batches; at batch `stop`, before or after the update is reported, put the clock away and take it up."""
    out = []
    for update in range(count):
        out.append(clock.next_batch())
        if update == stop and not between:
            clock = again(clock, path, fresh)
        clock.updated(policies[update + 1])
        if update == stop and between:
            clock = again(clock, path, fresh)
    return out


def again(clock, path, fresh):
    torch.save(clock.state(), path)
    other = fresh()
    other.restore(torch.load(path, weights_only=True), other.generator.policies[0])
    return other


def table_clock(system, groups=2, size=2):
    return lambda: Clock(system, world(), VERSIONS[0], torch.tensor([0, 2, 1]), 5, groups=groups, size=size)


def transformer_clock(system, policy=ANSWERING[0]):
    prompts = torch.tensor([38, 5, 99, 41, 7])
    return lambda: Clock(system, TASK, policy, prompts, 5, groups=3, size=2)


def goes_on(make, policies, path, stop, between, count=5):
    whole = deliveries(make(), policies, count)
    resumed = deliveries(make(), policies, count, stop, between, path, make)
    return all(same(one, other) for one, other in zip(whole, resumed, strict=True))


@given(values=system_values(), stop=st.integers(0, 3), between=st.booleans())
def test_any_system_goes_on_bit_for_bit(values, stop, between, tmp_path_factory):
    path = tmp_path_factory.mktemp("clock") / "state.pt"
    assert goes_on(table_clock(System(**values)), VERSIONS, path, stop, between)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("between", [False, True])
def test_transformers_go_on_bit_for_bit(name, between, tmp_path):
    system = find_system(name, step_seconds=0.05, slots=4)  # in the middle of responses
    assert goes_on(transformer_clock(system), ANSWERING, tmp_path / "state.pt", 3, between)


@pytest.mark.parametrize("name", ["areal", "dora"])
def test_noise_that_belongs_to_a_version_goes_on(name, tmp_path):
    policies = [disturbed(seed) for seed in range(6)]
    system = find_system(name, step_seconds=0.05, slots=4)
    assert goes_on(transformer_clock(system, policies[0]), policies, tmp_path / "state.pt", 3, True)


def test_keyed_noise_goes_on(tmp_path):
    def make():
        return Clock(SYSTEMS["dora"], world(), VERSIONS[0], torch.tensor([0]), KeyedChooser(3), groups=2, size=2)

    assert goes_on(make, VERSIONS, tmp_path / "state.pt", 2, True)


# ------------------------------------------------------------------------------------------- planted bugs
def differs(make, policies, path):
    """Whether a clock that was put away goes on otherwise, or not at all."""
    try:
        return not goes_on(make, policies, path, 3, True)
    except (AssertionError, KeyError, IndexError):
        return True


def zeroed(name):
    def plant(right):
        def state(self):
            saved = right(self)
            saved[name] = [torch.zeros_like(x) for x in saved[name]]
            return saved

        return state

    return plant


def forgets(name):
    def plant(right):
        def restore(self, state, *rest):
            fresh = getattr(self, name)
            right(self, state, *rest)
            setattr(self, name, fresh)

        return restore

    return plant


PARTIAL = find_system("areal", step_seconds=0.05, slots=4)
LIVING = find_system("dora", step_seconds=0.05, slots=4)
NOISY = find_system("dora", step_seconds=0.05, slots=4).but(name="noisy")
BUGS = [
    (SlotDecoder, "state", zeroed("keys"), LIVING),
    (SlotDecoder, "state", zeroed("values"), LIVING),
    (Generator, "restore", forgets("newest"), PARTIAL),
    (Backlog, "restore", forgets("paused"), find_system("april", slots=4)),
    (Admission, "restore", forgets("consumed"), PARTIAL),
    (Shelf, "restore", forgets("now"), SYSTEMS["replay"]),
    (ResponseTable, "restore", forgets("logp"), PARTIAL),
    (NoisySlots, "restore", forgets("tokens"), NOISY),
    (choosers, "stream_of", lambda right: lambda chooser: RandomChooser(9).generator.get_state(), PARTIAL),
]


@pytest.mark.parametrize(("where", "name", "bug", "system"), BUGS)
def test_what_a_state_leaves_out_is_seen(where, name, bug, system, tmp_path, monkeypatch):
    path, policies = tmp_path / "state.pt", [disturbed(seed) for seed in range(6)] if system is NOISY else ANSWERING
    make = transformer_clock(system, policies[0])
    assert goes_on(make, policies, path, 3, True)
    monkeypatch.setattr(where, name, bug(getattr(where, name)))
    if where is choosers:
        monkeypatch.setattr("testbed.rollout.clock.stream_of", choosers.stream_of)
    assert differs(make, policies, path)


def test_a_state_is_not_changed_by_what_follows(tmp_path):
    make = transformer_clock(PARTIAL)
    clock = make()
    for update in range(3):
        clock.next_batch()
        clock.updated(ANSWERING[update + 1])
    state = clock.state()
    first = clock.next_batch()
    other = make()
    for _ in range(2):
        other.restore(state, ANSWERING[0])
        assert same(other.next_batch(), first)


# ------------------------------------------------------------------------------------------- misuse
def test_what_cannot_be_saved_is_named():
    made = {"groups": 1, "size": 1}
    odd = Clock(SYSTEMS["synchronous"], world(), Prompted([VERSIONS[0]]), torch.tensor([0]), 5, **made)
    with pytest.raises(InputError, match="TransformerPolicy or a TabularPolicy"):
        odd.state()
    walked = Clock(SYSTEMS["synchronous"], world(), VERSIONS[0], torch.tensor([0]), ReplayChooser([]), **made)
    with pytest.raises(InputError, match="RandomChooser or a KeyedChooser"):
        walked.state()


def test_a_state_of_another_run_is_refused():
    state = table_clock(SYSTEMS["dora"])().state()
    with pytest.raises(InputError, match="as the system it was saved as"):
        table_clock(find_system("dora", ahead=3))().restore(state, VERSIONS[0])
    with pytest.raises(InputError, match="as the system it was saved as"):
        table_clock(SYSTEMS["dora"], groups=3)().restore(state, VERSIONS[0])
    keyed = Clock(SYSTEMS["dora"], world(), VERSIONS[0], torch.tensor([0]), KeyedChooser(3), groups=2, size=2)
    with pytest.raises(InputError, match="kind of chooser"):
        keyed.restore(state, VERSIONS[0])
    noisy = transformer_clock(SYSTEMS["dora"], disturbed(0))().state()
    with pytest.raises(InputError, match="0 laws of noise, 1 saved"):
        transformer_clock(SYSTEMS["dora"])().restore(noisy, ANSWERING[0])
    with pytest.raises(InputError, match="weights must be those"):
        table_clock(SYSTEMS["dora"])().restore(state, Prompted([VERSIONS[0]]))
