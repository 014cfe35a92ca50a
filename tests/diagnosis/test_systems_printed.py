"""The listing of systems: nothing missing, nothing wider than a page."""

import pytest

from testbed.core.errors import InputError
from testbed.core.sections import WIDTH, plain_lines
from testbed.diagnosis.systems_printed import list_systems, one_system
from testbed.rollout.system import System
from testbed.rollout.systems import SYSTEMS


def test_every_system_has_a_line_and_a_record():
    sections, records = list_systems()
    assert [row[0] for row in sections[0].rows] == [record["name"] for record in records] == list(SYSTEMS)
    assert {row[0] for row in sections[1].rows} == {name for name, system in SYSTEMS.items() if system.source}
    for record in records:
        bound = record.pop("bound")
        assert System(**record) == SYSTEMS[record["name"]] and bound == SYSTEMS[record["name"]].bound


def test_no_line_is_wider_than_a_page():
    sections = list_systems()[0]
    assert max(len(line) for section in sections for line in plain_lines(section)) <= WIDTH
    words = {row[0]: row[-1] for row in sections[0].rows}
    assert words["finished_first"].endswith("x1.5 started, rest lost")
    assert words["pipeline_rl"] == "stream, queue of 1" and words["areal"] == "stream, staleness <= 4"
    assert words["copris"].endswith("rest resumed, refilled") and "pinned" in words["steps_off"]
    assert words["replay"].endswith("50% replayed (uniform)")


def test_one_system_shows_every_value():
    sections, records = one_system("areal")
    assert {row[0] for row in sections[0].rows} | {"name"} == set(SYSTEMS["areal"].plain())
    assert ("ahead", "4") in sections[0].rows and records[0]["bound"] == 4


def test_an_unknown_system_is_named():
    with pytest.raises(InputError, match="did you mean 'areal'"):
        one_system("areel")
