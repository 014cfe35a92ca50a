"""The figures command, and the figure of the mutants' margins."""

from __future__ import annotations

import importlib
import json
import math

import pytest

from figures import mutant_margins
from figures.__main__ import app, available
from figures.mutant_margins import margins
from testbed.core.command import run_command

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
    assert [height for _, height, _ in found["S1"]] == pytest.approx([5e9, 1.0, math.inf], rel=1e-12)


def test_over_no_tolerance_any_margin_but_zero_is_infinite():
    mutants = [{"name": name, "killed": True, "margin": margin} for name, margin in (("a", 1e-9), ("b", 0.0))]
    found = margins({"verdicts": [{"id": "C1", "tolerance": 0, "mutants": mutants}]})
    assert [height for _, height, _ in found["C1"]] == [math.inf, 0.0]


def test_infinite_margins_have_a_mark_of_their_own_above_all_others(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(mutant_margins, "save", lambda figure, *_: saved.append(figure) or [])
    mutant_margins.draw([VERDICTS], tmp_path)
    (figure,) = saved
    marks = {line.get_label(): (line.get_marker(), max(line.get_ydata())) for line in figure.axes[0].get_lines()}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(marks)
    assert set(marks) == {"caught", "not caught", "infinite", "needed: $10^{3}$"}
    assert marks["needed: $10^{3}$"][1] == mutant_margins.REQUIRED
    assert marks["infinite"][0] not in {marks["caught"][0], marks["not caught"][0]}
    assert marks["infinite"][1] > 10 * max(height for label, (_, height) in marks.items() if label != "infinite")


def test_a_named_figure_is_drawn(records, tmp_path, capsys):
    out = tmp_path / "images"
    assert run_command(app, "figures", ["mutant_margins", "--records", str(records), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {f"mutant_margins.{kind}" for kind in ("pdf", "png", "json")}
    assert "mutant_margins.pdf" in capsys.readouterr().out


def test_without_a_name_figures_without_records_are_left_out_and_said(records, tmp_path, capsys):
    assert run_command(app, "figures", ["--records", str(records), "--out", str(tmp_path)]) == 0
    drawn, *printed = capsys.readouterr().out.splitlines()
    assert drawn.startswith("mutant_margins: ")
    said = dict(line.split(":", 1) for line in printed)
    assert set(said) == set(available()) - {"mutant_margins"}
    for name, line in said.items():
        assert "left out: a figure needs its record" in line
        script = importlib.import_module(f"figures.{name}")
        scales = "|".join(getattr(script, "SCALES", ("tiny", "real")))
        own = f"python -m theory records {name}" if script.RECORDS else f"run {script.REPRODUCED} --scale {scales}"
        assert own in line
    assert "python -m paper_repro run cis_fig8 --scale tiny`" in said["flips"]


def test_nothing_to_draw_is_one_sentence(tmp_path, capsys):
    assert run_command(app, "figures", ["--records", str(tmp_path / "a" / "b"), "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in ("make verify", "theory records", "paper_repro run", str(tmp_path)))


def test_the_first_folder_that_has_a_record_counts(records, tmp_path):
    empty, second = tmp_path / "none" / "records", tmp_path / "b" / "records"
    second.mkdir(parents=True)
    (second / "verdicts.json").write_text('{"verdicts": []}')
    for first, other, count in ((empty, records, 1), (second, records, 0), (records, second, 1)):
        folders = ["--records", str(first), "--records", str(other)]
        assert run_command(app, "figures", ["mutant_margins", *folders, "--out", str(tmp_path / "images")]) == 0
        assert len(json.loads((tmp_path / "images" / "mutant_margins.json").read_text())["margins"]) == count


def test_the_help_names_the_folders_looked_into(capsys):
    assert run_command(app, "figures", ["--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "out/verify/records and out/records" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such"], "known name"),
        (["mutant_margins", "--records", "nowhere"], "theory verify --json out/verify/verdicts.json"),
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
