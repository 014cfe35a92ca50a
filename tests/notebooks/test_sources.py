"""Every notebook runs from its source in the FAST profile, its controls move, its assertions can fail, its prose obeys."""

from __future__ import annotations

import json
import re
import runpy
import sys

import pytest

from tests.architecture import checks
from tests.notebooks import source_rules
from theory import bugs
from theory.catalogue import find

FOLDER = checks.ROOT / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))
ids = [path.stem for path in SOURCES]
each = pytest.mark.parametrize("path", SOURCES, ids=ids)
MOST_BYTES = 400_000


@pytest.fixture
def classroom(monkeypatch):
    """Run as the tests do: few points, the folder's own modules importable, nothing shown."""
    monkeypatch.setenv("NOTEBOOK_FAST", "1")
    monkeypatch.syspath_prepend(str(FOLDER))
    import classroom

    yield classroom
    for own in FOLDER.glob("*.py"):
        sys.modules.pop(own.stem, None)


@pytest.fixture
def compared(classroom, monkeypatch):
    """List the pairs of a control and its values at which `says` compares all that the control says."""
    import checked_panels

    told, says, texts, pairs = checked_panels.told, checked_panels.says, {}, []

    def telling(control, **values):
        text = told(control, **values)
        texts[text] = (control, values)
        return text

    def comparing(printed, *expected):
        pairs.extend([texts[printed]] if isinstance(printed, str) and printed in texts else [])
        return says(printed, *expected)

    monkeypatch.setattr(checked_panels, "told", telling)
    monkeypatch.setattr(checked_panels, "says", comparing)
    return pairs


def ends(widget):
    """First and last value a slider or menu can take."""
    values = [option[1] if isinstance(option, tuple) else option for option in widget.options]
    return values[0], values[-1]


def test_there_are_notebooks():
    assert len(SOURCES) >= 2


@each
def test_a_source_runs_and_its_controls_move(path, classroom, compared):
    found = runpy.run_path(str(path))
    controls = [value for value in found.values() if isinstance(value, classroom.Control)]
    assert controls
    for control in controls:
        if "settings" in found:  # then its numbers are compared at the start and at both ends of each slider
            assert all((control, at) in compared for at in found["settings"](control))
        pictures, sentences = {bytes(control.image.value)}, {control.sentence.value}
        for widget in control.widgets.values():
            start = widget.value
            for value in ends(widget):
                widget.value = value
                pictures.add(bytes(control.image.value))
                sentences.add(control.sentence.value)
            widget.value = start
        assert all(picture.startswith(b"\x89PNG") for picture in pictures)
        assert len(pictures) > len(control.widgets)
        assert len(sentences) > len(control.widgets)


@each
def test_its_assertions_fail_when_the_library_is_wrong(path, classroom):
    with bugs.ratio_inverted(), pytest.raises(AssertionError):
        runpy.run_path(str(path))


@each
def test_its_prose_keeps_the_rules(path):
    text = path.read_text()
    assert source_rules.numbers_in_prose(text) == []
    assert source_rules.estimators_defined(text) == []
    assert source_rules.parts_missing(text) == []


@each
def test_the_mutants_it_names_exist(path):
    for theorem, mutant in source_rules.mutants_named(path.read_text()):
        assert mutant in {m.name for m in find(theorem).mutants}


@each
def test_the_executed_file_shows_figures_to_a_reader_without_a_kernel(path):
    target = path.with_suffix(".ipynb")
    assert target.stat().st_size < MOST_BYTES
    text = target.read_text()
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert [output for output in outputs if output["output_type"] in ("error", "stream")] == []
    assert "widget-view" not in text
    assert json.loads(text)["metadata"].keys() == {"kernelspec", "language_info"}


@each
def test_the_index_has_its_question(path):
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if f"]({path.stem}.ipynb)" in line]
    assert len(rows) == 1 and rows[0].startswith(f"| [{path.stem[:2]} ") and rows[0].endswith("? |")


# ------------------------------------------------------------------------------------------------ the rules can fail
HEADER = "# ---\n# jupyter:\n#   kernelspec:\n#     display_name: Python 3\n#     name: python3\n# ---\n\n"
GOOD = (
    f"{HEADER}# %% [markdown]\n# **Question.** Why? `python -m theory break S1:x`\n\n"
    "# %%\nprediction = None\n\n# %%\nreveal(prediction)\nControl()\nassert True\n"
)
PARTS = ("prediction = None", "reveal(", "Control()", "assert ", "theory break ", HEADER, "**Question.**")


def test_the_rules_pass_what_keeps_them():
    assert (
        source_rules.parts_missing(GOOD)
        == source_rules.numbers_in_prose(GOOD)
        == source_rules.estimators_defined(GOOD)
        == []
    )
    assert source_rules.mutants_named(GOOD) == [("S1", "x")]


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_noticed(part):
    assert source_rules.parts_missing(GOOD.replace(part, "")) != []


def test_a_number_in_prose_is_noticed_and_one_in_a_formula_is_not():
    assert len(source_rules.numbers_in_prose("# %% [markdown]\n# The bias is 0.05, or 40%, not $0.3$ or `0.2`.\n")) == 2


def test_an_estimator_in_a_cell_is_noticed():
    assert (
        len(source_rules.estimators_defined("# %%\ndef mine(b):\n    return (b.logp_target - b.logp_behavior).exp()\n"))
        == 2
    )


# ------------------------------------------------------------------------------------------------ the shared module
def test_an_answer_is_folded_away_until_there_is_a_prediction(classroom, capsys):
    classroom.reveal(None, 0.25, "Because.")
    assert "<details>" in capsys.readouterr().out
    classroom.reveal(0.25, 0.25, "Because.")
    assert "**right**" in capsys.readouterr().out
    classroom.reveal(0.5, 0.25, "Because.")
    assert "off by +0.2500" in capsys.readouterr().out


def test_the_fast_profile_has_fewer_points(classroom, monkeypatch):
    assert len(classroom.grid(0.0, 1.0, 20)) == 5
    monkeypatch.setenv("NOTEBOOK_FAST", "0")
    assert len(classroom.grid(0.0, 1.0, 20)) == 21


def test_a_control_carries_a_static_stand_in(classroom, monkeypatch):
    shown = []
    monkeypatch.setattr(classroom, "_in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    choice = classroom.Choice("x", [1, 2], 1)
    classroom.Control(lambda x: (b"\x89PNG" + bytes([x]), f"x is {x}"), x=choice).show()
    assert {"image/png", "application/vnd.jupyter.widget-view+json"} <= shown[0].keys()


def test_the_executed_file_shows_every_committed_study():
    """A study committed after the last execution would be missing from what a reader sees."""
    notebook = json.loads((FOLDER / "09_stale_training.ipynb").read_text())
    shown = json.dumps([cell.get("outputs", []) for cell in notebook["cells"]])
    studies = sorted(path.stem for path in (checks.ROOT / "paper_repro" / "results").glob("study_*.parquet"))
    missing = [name for name in studies if not re.search(rf"\b{name.removeprefix('study_')}\b", shown)]
    assert studies and missing == [], "make notebooks"
