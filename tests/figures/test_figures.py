"""The figures command, and the figure of the mutants' margins."""

from __future__ import annotations

import json

import pytest

from figures.__main__ import app, available
from figures.mutant_margins import TOP, margins
from testbed.core.command import run_command
from tests.figures.test_reproduced_figures import REPRODUCED

VERDICTS = {
    "verdicts": [
        {
            "id": "S1",
            "tolerance": 1e-10,
            "mutants": [
                {"name": "a", "killed": True, "margin": 0.5},
                {"name": "b", "killed": False, "margin": 1e-10},
                {"name": "c", "killed": True, "margin": "inf"},
                {"name": "d", "killed": False, "margin": None},
            ],
        },
        {"id": "C17", "tolerance": 0, "mutants": []},
    ]
}


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "verdicts.json").write_text(json.dumps(VERDICTS))
    return folder


def test_margins_are_in_units_of_the_tolerance():
    found = margins(VERDICTS)
    assert list(found) == ["S1"]
    assert [name for name, _, _ in found["S1"]] == ["a", "b", "c"]
    assert [height for _, height, _ in found["S1"]] == pytest.approx([5e9, 1.0, TOP], rel=1e-12)


def test_a_named_figure_is_drawn(records, tmp_path, capsys):
    out = tmp_path / "images"
    assert run_command(app, "figures", ["mutant_margins", "--records", str(records), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {f"mutant_margins.{kind}" for kind in ("pdf", "png", "json")}
    assert "mutant_margins.pdf" in capsys.readouterr().out


def test_without_a_name_figures_without_records_are_left_out_and_said(tmp_path, capsys):
    assert run_command(app, "figures", ["--records", str(tmp_path), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {line.split(":")[0] for line in printed} == set(available()) - set(REPRODUCED)
    assert all("left out: a figure needs its record" in line for line in printed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such"], "known name"),
        (["mutant_margins", "--records", "nowhere"], "no file nowhere"),
        (["displacement_moments", "--records", "nowhere"], "none of the reproduction in nowhere"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(arguments, message, capsys):
    assert run_command(app, "figures", arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_verdicts_may_stand_above_the_records(records, tmp_path):
    below = records / "more"
    below.mkdir()
    assert (
        run_command(app, "figures", ["mutant_margins", "--records", str(below), "--out", str(tmp_path / "images")]) == 0
    )


def test_records_of_another_form_are_one_sentence(records, capsys):
    (records / "verdicts.json").write_text('{"verdicts": [{"id": "S1"}]}')
    assert run_command(app, "figures", ["mutant_margins", "--records", str(records)]) == 2
    assert "must have the fields it draws" in capsys.readouterr().err


def test_the_list_says_what_each_figure_shows(capsys):
    assert run_command(app, "figures", ["--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in printed] == list(available())
    assert all(len(line.split(": ", 1)[1]) > 20 for line in printed)
