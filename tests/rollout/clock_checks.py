"""What must hold of every run of the clock; each check raises AssertionError where it does not."""

from __future__ import annotations

import math
from itertools import pairwise

import torch


def conservation(run):
    """Every token drawn was delivered fresh exactly once, or is held, or was dropped and counted."""
    delivered = {}
    for delivery, _, response, t, token, _, _ in run.tokens():
        assert (response, t) not in delivered, "a token was trained on twice"
        drawn, moment = run.witness.drawn[response, t]
        assert drawn == token, "a token is not the one that was drawn"
        assert moment <= delivery.time, "a token was delivered before it was drawn"
        delivered[response, t] = token
    held = {(i, t) for i, written in run.clock.holding().items() for t in range(written)}
    assert not held & delivered.keys(), "a delivered token is still held"
    lost = run.witness.drawn.keys() - delivered.keys() - held
    assert len(lost) == run.clock.totals["dropped_tokens"], "a token was lost without being counted"
    assert not lost or run.system.leftover == "drop"
    places = [i for desk in run.clock.generator.desks for i in desk.ids.tolist()]
    places += [*run.clock.backlog.pending, *run.clock.backlog.paused]
    ended = {i for i, written in run.clock.holding().items() if written and over(run, i, written)}
    assert sorted([*places, *ended]) == [*run.clock.holding()], "a held response is nowhere, or in two places"
    responses = sum(int((~d.replayed).sum()) for d in run.deliveries)
    admitted = run.clock.backlog.admitted * run.size
    assert admitted == responses + run.clock.totals["dropped"] + len(run.clock.holding())
    assert run.clock.totals["tokens"] == len(run.witness.drawn)
    assert sum(d.dropped for d in run.deliveries) == run.clock.totals["dropped"]


def over(run, response, written):
    """Whether a held response has ended: by its length or by its last token."""
    return written == run.clock.env.horizon or run.witness.drawn[response, written - 1][0] == run.clock.env.eos


def replay(run):
    """Replayed responses come as they were first delivered, and only if replay is on; only successes if so asked."""
    first = {}
    for update, delivery in enumerate(run.deliveries):
        b = delivery.batch
        for row, response in enumerate(delivery.response.tolist()):
            seen = (b.tokens[row].tolist(), b.version[row].tolist(), b.logp_behavior[row].tolist(), int(b.group[row]))
            if not delivery.replayed[row]:
                first[response] = (update, seen, float(b.reward[row]))
                continue
            assert run.system.replay != "off", "a response was replayed although replay is off"
            taken, as_taken, reward = first[response]
            assert taken < update and as_taken == seen, "a response was replayed that is not as it was taken"
            assert run.system.replay != "success" or reward >= 1, "a failure was replayed"
            assert run.system.replay_age is None or update - taken <= run.system.replay_age, "too old a replay"


def batch_size(run):
    """Every batch has as many responses, a share of them replayed; groups are whole where that is promised."""
    for update, delivery in enumerate(run.deliveries):
        assert delivery.batch.batch_size == run.groups * run.size
        assert update > 0 or not delivery.replayed.any()
        if run.system.deliver == "group":
            fresh = delivery.response[~delivery.replayed] // run.size
            assert all(int(count) == run.size for count in fresh.unique(return_counts=True)[1]), "a part of a group"


def bound(run):
    """No fresh token is older than the system promises."""
    for delivery in run.deliveries:
        age = delivery.staleness[~delivery.replayed]
        assert bool((age >= 0).all()), "a token of the future"
        limit = run.system.bound
        assert limit is None or bool((age <= limit).all()), f"ages {age.tolist()}, promised {limit}"


def versions(run):
    """The version of a token is the policy that drew it, and never goes back along a response; one, if it finishes so."""
    for delivery in run.deliveries:
        b = delivery.batch
        for written in b.version[b.mask].unique().tolist():
            here = b.mask & (b.version == written)
            scored = run.versions[written].score(b.tokens)[here]
            assert torch.allclose(scored, b.logp_behavior[here], rtol=0, atol=1e-12), "another version drew this token"
        step = (b.version[:, 1:] - b.version[:, :-1])[b.mask[:, 1:]]
        assert bool((step >= 0).all()), "a version went back"
        assert run.system.push != "finish" or bool((step == 0).all()), "a response did not finish under its weights"


def segments(run):
    """Segments number the runs of one version; the engine is named."""
    for delivery in run.deliveries:
        b = delivery.batch
        for row in range(b.batch_size):
            length = int(b.lengths[row])
            expected, label = [], 0
            for t in range(length):
                label += t > 0 and int(b.version[row, t]) != int(b.version[row, t - 1])
                expected.append(label)
            assert b.segment[row].tolist() == expected + [-1] * (b.horizon - length)
            assert b.engine[row].tolist() == [0] * length + [-1] * (b.horizon - length)


def fifo(run):
    """Where promised, fresh responses come in the order of admission."""
    if run.system.order == "fifo":
        fresh = [int(i) for d in run.deliveries for i in d.response[~d.replayed]]
        assert fresh == list(range(len(fresh)))


def time(run):
    """Time never runs backwards, the trainer is idle or busy, the engine does no more than its slots allow."""
    assert all(a < b for a, b in pairwise(run.witness.moments)), "two steps at one moment, or time ran backwards"
    assert all(a.time <= b.time for a, b in pairwise(run.deliveries))
    clock = run.clock
    assert math.isclose(clock.waiting_seconds + clock.trainer_seconds, clock.time, rel_tol=1e-12, abs_tol=1e-12)
    assert math.isclose(sum(d.waiting for d in run.deliveries), clock.waiting_seconds, rel_tol=1e-12, abs_tol=1e-12)
    busy = sum(d.log["engine_busy"] for d in run.deliveries)
    assert 0 <= busy <= clock.time + 1e-9
    assert max(run.witness.widths) <= clock.generator.count
    period = run.system.update_seconds + run.system.push_seconds
    for a, b in pairwise(run.deliveries):
        assert b.time >= a.time + period - 1e-9, "the trainer took a batch before its update was done"
        assert b.version == a.version + 1


def pushes(run):
    """Every token was drawn by a version whose weights had arrived."""
    arrives = [0.0] + [d.time + run.system.update_seconds + run.system.push_seconds for d in run.deliveries]
    for _, _, response, t, _, written, _ in run.tokens():
        assert run.witness.drawn[response, t][1] >= arrives[written] - 1e-9, "weights were used before they arrived"


ALL = (conservation, replay, batch_size, bound, versions, segments, fifo, time, pushes)


def same(one, other):
    """Whether two deliveries are equal bit for bit."""
    fields = ("tokens", "mask", "segment", "logp_target", "logp_behavior", "reward", "group", "version", "engine")
    plain = [
        (d.time, d.version, d.waiting, d.dropped, d.replayed.tolist(), d.response.tolist(), d.log) for d in (one, other)
    ]
    return plain[0] == plain[1] and all(
        torch.equal(getattr(one.batch, name), getattr(other.batch, name)) for name in fields
    )
