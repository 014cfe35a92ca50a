"""The asynchronous clock: what every system conserves, and that each check sees the bug it is there for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.rollout import clock as clock_module
from testbed.rollout import delivery as delivery_module
from testbed.rollout.clock import Clock
from testbed.rollout.clockwork import shelf
from testbed.rollout.clockwork.admission import Admission
from testbed.rollout.clockwork.backlog import Backlog
from testbed.rollout.clockwork.generator import Generator
from testbed.rollout.clockwork.response_table import ResponseTable
from testbed.rollout.clockwork.shelf import Shelf
from testbed.rollout.system import System
from testbed.rollout.systems import SYSTEMS, find_system, steps_off
from tests.rollout.clock_checks import (
    ALL,
    batch_size,
    bound,
    conservation,
    fifo,
    pushes,
    replay,
    segments,
    time,
    versions,
)
from tests.rollout.clock_worlds import VERSIONS, Run, system_values, world


@given(values=system_values(), groups=st.integers(1, 3), size=st.integers(1, 3), seed=st.integers(0, 99))
def test_what_every_system_conserves(values, groups, size, seed):
    run = Run(System(**values), updates=5, groups=groups, size=size, seed=seed)
    for check in ALL:
        check(run)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if SYSTEMS[name].push != "stale_cache"])
def test_what_every_published_system_conserves(name):
    run = Run(SYSTEMS[name], updates=12, groups=4, size=3)
    for check in ALL:
        check(run)


# ------------------------------------------------------------------------------------------- planted bugs
def slow(**values):
    """Return a stream in which the trainer is slow and responses are old."""
    return System(name="slow", generation="stream", order="finished", update_seconds=2.0, step_seconds=1.0, **values)


def racing(**values):
    """Return a stream in which a long response sees many short ones pass."""
    return slow(slots=3, deliver="response", **values).but(update_seconds=0.0, push_seconds=0.0)


def one_twice(right):
    return lambda self, units: right(self, units)[:-1] + right(self, units)[:1]


def in_another_order(right):
    return lambda table, ids, env, target: right(table, [*ids[1:], ids[0]], env, target)


def scored_again(right):
    def assembled(table, ids, env, target):
        batch = right(table, ids, env, target)
        table.logp[table.rows(ids)] *= 2.0
        return batch

    return assembled


def loses_what_was_pending(self, stopped):
    self.paused, self.pending = sorted([*self.paused, *stopped]), []


def quota_of_a_batch_more(right):
    return lambda self, update: right(self, update + 1)


def waits_for_nobody(right):
    return lambda self, need, version, bound: right(self, need, version, None)


def wrong_version(right):
    return lambda self, rows, tokens, version, logp: right(self, rows, tokens, 11 - version, logp)


def weights_of_yesterday(right):
    def arrive(self, policy):
        right(self, policy)
        self.policies[self.newest] = self.policies.get(self.newest - 1, policy)

    return arrive


def ends_first(right):
    return lambda self, need: list(self.done)[:need] if len(self.done) >= need else None


def idle_time_forgotten(right):
    def arrive(self):
        before = self.trainer_seconds
        right(self)
        self.trainer_seconds = before

    return arrive


def arrives_at_once(right):
    def updated(self, policy):
        right(self, policy)
        self.push_at = self.time

    return updated


OVER = System(name="over", ahead=0, start=2.0, push="recompute", order="finished", slots=2)
PLANTED = [
    (conservation, Backlog, "responses", one_twice, slow(ahead=2)),
    (conservation, clock_module, "assembled", in_another_order, slow(ahead=2)),
    (conservation, Backlog, "pause", lambda right: loses_what_was_pending, OVER),
    (conservation, Backlog, "drop", lambda right: lambda self, also: right(self, also)[1:], SYSTEMS["finished_first"]),
    (replay, shelf, "SUCCESS", lambda right: 0.0, SYSTEMS["replay_success"]),
    (
        replay,
        Shelf,
        "settle",
        lambda right: lambda self, u: right(self, max(u - 3, 0)),
        find_system("replay_aged", replay_age=1),
    ),
    (replay, clock_module, "assembled", scored_again, SYSTEMS["replay"]),
    (batch_size, Backlog, "responses", lambda right: lambda self, units: right(self, units)[:-1], slow(ahead=2)),
    (bound, Admission, "quota", quota_of_a_batch_more, slow(ahead=1)),
    (bound, Backlog, "oldest_first", waits_for_nobody, racing(ahead=1)),
    (
        bound,
        Backlog,
        "started",
        lambda right: lambda self, ids, version: right(self, ids, version + 1),
        racing(ahead=1),
    ),
    (versions, ResponseTable, "write", wrong_version, slow(ahead=2)),
    (versions, Generator, "arrive", weights_of_yesterday, slow(ahead=2)),
    (versions, Generator, "switch", lambda right: lambda self: 0 * setattr_push(self) or right(self), slow(ahead=3)),
    (
        segments,
        delivery_module,
        "runs",
        lambda right: lambda version, mask: torch.where(mask, version, -1),
        slow(ahead=2),
    ),
    (fifo, Backlog, "first_admitted", ends_first, find_system("dora", order="fifo")),
    (time, Clock, "_arrive", idle_time_forgotten, SYSTEMS["one_step_off"]),
    (time, System, "step_time", lambda right: lambda self, running: -0.5, SYSTEMS["one_step_off"]),
    (time, Clock, "updated", arrives_at_once, SYSTEMS["one_step_off"]),
    (pushes, Clock, "updated", arrives_at_once, SYSTEMS["dora"]),
]


def setattr_push(generator):
    """Let running responses go on under new weights in a system that promised they finish."""
    generator.push = "recompute"
    return 0


@pytest.mark.parametrize(("check", "where", "name", "bug", "system"), PLANTED)
def test_each_check_sees_its_bug(check, where, name, bug, system, monkeypatch):
    shape = {"updates": 30, "groups": 1, "size": 1} if system.slots == 3 else {"updates": 12, "groups": 4}
    check(Run(system, **shape))
    monkeypatch.setattr(where, name, bug(getattr(where, name)))
    with pytest.raises(AssertionError):
        check(Run(system, **shape))


# ------------------------------------------------------------------------------------------- what emerges
def test_synchronous_tokens_are_never_stale():
    for system in (SYSTEMS["synchronous"], steps_off(0)):
        assert all(int(d.staleness.max()) == 0 for d in Run(system, updates=6).deliveries)


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("update_seconds", [0.0, 0.1, 50.0])
def test_steps_off_makes_every_token_exactly_so_old(ahead, update_seconds):
    run = Run(find_system("steps_off", ahead=ahead, update_seconds=update_seconds), updates=9)
    for update, delivery in enumerate(run.deliveries):
        age = delivery.staleness[delivery.batch.mask]
        assert age.unique().tolist() == [min(update, ahead)]


def test_a_bound_of_zero_in_a_stream_is_synchronous_in_its_ages():
    run = Run(slow(ahead=0), updates=5)
    assert all(int(d.staleness.max()) == 0 for d in run.deliveries)


def ages(system):
    return torch.cat(
        [d.staleness[d.batch.mask] for d in Run(system, updates=20, groups=4, size=2).deliveries[5:]]
    ).double()


def test_a_slow_trainer_makes_a_stream_stale_up_to_its_bound():
    assert ages(slow(ahead=3)).max() == 3
    fast = slow(ahead=3).but(update_seconds=0.0, push_seconds=0.0)
    assert ages(fast).mean() < ages(slow(ahead=3)).mean()


def test_partial_rollouts_emerge_from_a_push():
    interrupted = Run(slow(ahead=2, push="recompute"), updates=12, groups=4)
    assert max(d.batch.n_segments for d in interrupted.deliveries) >= 2
    assert max(d.batch.n_segments for d in Run(slow(ahead=2), updates=12, groups=4).deliveries) == 1


def test_resumed_responses_carry_the_versions_of_several_rounds():
    run = Run(OVER, updates=12, groups=4)
    assert max(d.batch.n_segments for d in run.deliveries) >= 2
    assert run.clock.totals["read_again"] > 0


# ------------------------------------------------------------------------------------------- times, by hand


def by_hand(name, **changes):
    """Times of the deliveries where no response ends before its fourth token: a round of 3 takes 4 steps of 1.3 s."""
    times = {"step_seconds": 1.0, "response_seconds": 0.1, "update_seconds": 3.0, "push_seconds": 0.5}
    env = world()
    env.eos = None
    clock = Clock(find_system(name, **(times | changes)), env, VERSIONS[0], torch.tensor([0]), 1, groups=3)
    out = []
    for update in range(4):
        delivery = clock.next_batch()
        out.append((delivery.time, delivery.waiting))
        clock.updated(VERSIONS[update + 1])
    return [pytest.approx(pair) for pair in out]


def test_times_of_rounds():
    assert by_hand("synchronous") == [(5.2, 5.2), (13.9, 5.2), (22.6, 5.2), (31.3, 5.2)]
    assert by_hand("one_step_off") == [(5.2, 5.2), (10.4, 1.7), (15.6, 1.7), (20.8, 1.7)]  # writing takes longer
    slower = by_hand("one_step_off", update_seconds=9.5)
    assert slower == [(5.2, 5.2), (15.2, 0.0), (25.2, 0.0), (35.2, 0.0)]  # the trainer takes longer


def test_a_push_in_a_step_takes_effect_when_it_ends():
    quick = {"update_seconds": 1.0, "push_seconds": 0.5}
    clock = Clock(
        find_system("areal", ahead=1, step_seconds=1.0, response_seconds=0.0, **quick), whole(), VERSIONS[0],
        torch.tensor([0]), 1, groups=1,
    )  # fmt: skip
    clock.next_batch()
    clock.updated(VERSIONS[1])
    second = clock.next_batch()
    assert second.batch.version.tolist() == [[0, 0, 1, 1]] and second.time == 8.0


def whole():
    env = world()
    env.eos = None
    return env


def test_reading_again_takes_time():
    values = {"ahead": 1, "step_seconds": 1.0, "response_seconds": 0.0, "update_seconds": 1.0, "push_seconds": 0.5}
    clock = Clock(
        find_system("areal", prefill_seconds=0.25, **values), whole(), VERSIONS[0], torch.tensor([0]), 1, groups=1
    )
    clock.next_batch()
    clock.updated(VERSIONS[1])
    assert clock.next_batch().time == 8.5 and clock.totals["read_again"] == 2


# ------------------------------------------------------------------------------------------- misuse
def test_batches_and_updates_alternate():
    clock = Clock(SYSTEMS["synchronous"], world(), VERSIONS[0], torch.tensor([0]), 1, groups=1)
    with pytest.raises(InputError, match="must follow a batch"):
        clock.updated(VERSIONS[1])
    clock.next_batch()
    with pytest.raises(InputError, match="must be reported"):
        clock.next_batch()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 0}, "`groups` and `size`"),
        ({"prompts": torch.tensor([3])}, r"0\.\.2"),
        ({"prompts": torch.zeros(0, dtype=torch.int64)}, "must be a prompt"),
        ({"system": SYSTEMS["pipeline_rl"]}, "keeps keys and values"),
        ({"chooser": 1.5}, "`chooser` must draw"),
    ],
)
def test_bad_arguments_are_named(changes, message, untyped):
    values = {"system": SYSTEMS["synchronous"], "prompts": torch.tensor([0]), "chooser": 1, "groups": 1} | changes
    with pytest.raises(InputError, match=message):
        Clock(
            values["system"], world(), VERSIONS[0], values["prompts"], values["chooser"], groups=values["groups"]
        ).next_batch()


def test_prompts_may_be_a_function_of_the_group():
    clock = Clock(SYSTEMS["one_step_off"], world(), VERSIONS[0], lambda g: g % 2, 1, groups=3, size=2)
    first = clock.next_batch()
    clock.updated(VERSIONS[1])
    assert first.batch.group.tolist() == [0, 0, 1, 1, 0, 0]
    assert clock.next_batch().batch.group.tolist() == [1, 1, 0, 0, 1, 1]


def test_a_target_is_scored():
    clock = Clock(SYSTEMS["synchronous"], world(), VERSIONS[0], torch.tensor([0]), 1, groups=3)
    batch = clock.next_batch(target=VERSIONS[5]).batch
    assert torch.equal(batch.logp_target, torch.where(batch.mask, VERSIONS[5].score(batch.tokens), 0.0))
    assert not torch.equal(batch.logp_target, batch.logp_behavior)


def test_a_later_change_of_the_weights_is_not_seen():
    logits = VERSIONS[0].logits.clone()
    policy = clock_module.snapshot(VERSIONS[0])
    policy.logits = logits
    clock = Clock(SYSTEMS["synchronous"], world(), policy, torch.tensor([0]), 1, groups=3)
    logits.zero_()
    batch = clock.next_batch(target=VERSIONS[0]).batch
    assert torch.equal(batch.logp_target, batch.logp_behavior)


@pytest.mark.parametrize(
    "changes", [{}, {"ahead": 3}, {"replay": "success"}, {"start": 2.0, "order": "finished", "push": "recompute"}]
)
@pytest.mark.parametrize("share", [0.9999, 1 - 1e-12])
def test_where_nearly_all_is_replayed_nobody_looks_for_the_next_fresh_group(share, changes, monkeypatch):
    """The plan is asked about updates that may start now; the next one with a fresh group is 10,000 away, or more."""
    asked, planned = [], Shelf.planned

    def counted(self, update):
        asked.append(update)
        assert len(asked) < 2000, "the plan is asked about updates far ahead"
        return planned(self, update)

    monkeypatch.setattr(Shelf, "planned", counted)
    run = Run(find_system("replay", replay_share=share).but(**changes), updates=40, groups=1, size=2)
    assert max(asked) <= 40 + changes.get("ahead", 0)
    batch_size(run)
    replay(run)
    if not changes:
        assert [bool(delivery.replayed.all()) for delivery in run.deliveries] == [False] + [True] * 39
