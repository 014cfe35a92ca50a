"""Systems as configuration: what is refused, what is promised, how they are changed and written down."""

import json

import pytest

from testbed.core.errors import InputError
from testbed.diagnosis.systems_printed import one_system
from testbed.rollout.system import CHOICES, LEAST, SECONDS, System
from testbed.rollout.systems import SYSTEMS, find_system, steps_off
from testbed.weighting.rules import RULES


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_are_plain(name):
    assert SYSTEMS[name].name == name
    assert System(**json.loads(json.dumps(SYSTEMS[name].plain()))) == SYSTEMS[name]


def test_what_is_promised_about_staleness():
    expected = {
        "synchronous": 0, "one_step_off": 1, "steps_off": 2, "areal": 4, "dora": 2, "pipeline_rl": None, "april": None,
        "copris": None, "finished_first": 0, "replay": 0, "replay_success": 0, "replay_aged": 0,
    }  # fmt: skip
    assert {name: system.bound for name, system in SYSTEMS.items()} == expected
    assert [steps_off(ahead).bound for ahead in range(3)] == [0, 1, 2]


def test_only_areal_trains_with_a_decoupled_objective_and_its_listing_names_the_rule():
    assert [name for name, system in SYSTEMS.items() if system.objective == "decoupled"] == ["areal"]
    remarks = {name: " ".join(one_system(name)[0][0].remarks) for name in SYSTEMS}
    assert [name for name, said in remarks.items() if '`rule` to "decoupled_ppo"' in said] == ["areal"]
    assert "decoupled_ppo" in RULES


@pytest.mark.parametrize("field", CHOICES)
def test_a_bad_choice_names_the_field_the_value_and_what_is_allowed(field, untyped):
    with pytest.raises(InputError, match=f"`{field}` must be one of {', '.join(CHOICES[field])}.*'often'"):
        find_system("areal", **{field: "often"})


@pytest.mark.parametrize("field", LEAST)
@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_whole_numbers_are_whole(field, value, untyped):
    with pytest.raises(InputError, match=f"`{field}` must be a whole number >= {LEAST[field]}"):
        find_system("pipeline_rl", **{field: value})


@pytest.mark.parametrize("field", SECONDS)
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_times_are_finite(field, value):
    with pytest.raises(InputError, match=f"`{field}` must be finite"):
        find_system("areal", **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [("start", "2", "a number"), ("replay_share", "half", "a number"), ("push_seconds", True, "a number"),
     ("step_seconds", "1", "a number"), ("pinned", "false", "true or false"), ("refill", 1, "true or false")],
)  # fmt: skip
def test_a_value_of_another_kind_is_named(field, value, kind, untyped):
    with pytest.raises(InputError, match=f"`{field}` must be {kind}; found {value!r}"):
        find_system("areal", **{field: value})


def test_a_step_takes_time():
    with pytest.raises(InputError, match="`step_seconds` must be finite and > 0"):
        find_system("areal", step_seconds=0.0)
    assert find_system("areal", step_seconds=2.0, response_seconds=0.5).step_time(3) == 3.5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("synchronous", {"ahead": None}, "rounds need `ahead`"),
        ("synchronous", {"queue": 1}, "`queue` belongs to a stream"),
        ("pipeline_rl", {"queue": None}, "needs `ahead` or `queue`"),
        ("areal", {"start": 2.0}, "belong to rounds"),
        ("areal", {"pinned": True}, "`pinned` needs rounds"),
        ("april", {"pinned": True}, "`pinned` needs rounds that start what they take"),
        ("steps_off", {"push": "recompute"}, "`pinned` needs push='finish'"),
        ("april", {"order": "fifo"}, "needs order='finished'"),
        ("april", {"push": "finish"}, "leftover='resume' needs push='recompute'"),
        ("finished_first", {"refill": True}, "`refill` needs"),
        ("synchronous", {"refill": True}, "`refill` needs"),
        ("replay", {"replay_share": 0.0}, "must be on together"),
        ("synchronous", {"replay_share": 0.5}, "must be on together"),
        ("replay", {"replay_share": 1.0}, r"\[0, 1\)"),
        ("april", {"start": 0.5}, "`start` must be finite and >= 1"),
        ("april", {"starts": 2.0}, "a system has name, source, .*starts.*did you mean `start`"),
        ("aprl", {}, "did you mean 'april'"),
        ("else", {}, "must be one of synchronous"),
    ],
)
def test_contradictions_are_refused(name, changes, message):
    with pytest.raises(InputError, match=message):
        find_system(name, **changes)
