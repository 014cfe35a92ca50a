"""Notebooks are executed from their sources, and a notebook that no longer matches its source is noticed."""

from __future__ import annotations

import importlib.util
import json

import jupytext
import nbformat
import pytest

from tests.architecture import checks

SOURCE = "# %% [markdown]\n# # One\n\n# %%\nvalue = 6 * 7\nprint(value)\n\n# %%\nassert value == 42\n"


@pytest.fixture
def execution(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("notebook_execution", checks.ROOT / "notebooks" / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    (tmp_path / "01_one.py").write_text(SOURCE)
    return module


def test_committed_notebooks_match_their_sources():
    spec = importlib.util.spec_from_file_location("notebook_execution", checks.ROOT / "notebooks" / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [sentence for path in module.sources([]) if (sentence := module.stale(path))] == []


@pytest.mark.filterwarnings("default")  # of the kernel's own libraries
def test_an_executed_notebook_has_outputs_and_no_times(execution, tmp_path):
    (path,) = execution.sources([])
    assert execution.stale(path) == "01_one.ipynb does not exist"
    target = execution.execute(path)
    first = target.read_text()
    cells = json.loads(first)["cells"]
    assert cells[1]["outputs"][0]["text"] == ["42\n"]
    assert [cell["id"] for cell in cells] == ["cell-000", "cell-001", "cell-002"]
    assert 'execution"' not in first
    assert execution.stale(path) is None
    execution.execute(path)
    assert target.read_text() == first
    path.write_text(SOURCE.replace("6 * 7", "7 * 6"))
    assert execution.stale(path) == "01_one.ipynb: cell-001 ('value = 7 * 6') differs from 01_one.py"


@pytest.mark.filterwarnings("default")  # of the kernel's own libraries
def test_an_error_in_a_cell_stops_and_writes_nothing(execution, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTEBOOK_FAST", "1")
    line = 'import os, testbed\nassert "NOTEBOOK_FAST" not in os.environ\nassert value == 43, "six times seven"'
    (tmp_path / "01_one.py").write_text(SOURCE.replace("assert value == 42", line))
    with pytest.raises(Exception, match="six times seven"):
        execution.execute(tmp_path / "01_one.py")
    assert not (tmp_path / "01_one.ipynb").exists()


def executed(source, path):
    """Write a notebook as if it had been executed."""
    notebook = jupytext.reads(source, fmt="py:percent")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
    nbformat.write(notebook, path.with_suffix(".ipynb"))


def check(execution, monkeypatch, capsys):
    """Return exit status and output of `execute.py --check`."""
    monkeypatch.setattr("sys.argv", ["execute.py", "--check"])
    return execution.main(), capsys.readouterr().out


@pytest.mark.filterwarnings("default")  # cells written here have no ids
def test_a_check_passes_or_names_the_first_cell_that_differs(execution, tmp_path, monkeypatch, capsys):
    path = tmp_path / "01_one.py"
    executed(SOURCE, path)
    assert check(execution, monkeypatch, capsys) == (0, "every notebook matches its source\n")
    for changed, complaint in {
        SOURCE.replace("One", "Two"): "cell-000 ('# Two') differs from 01_one.py",
        SOURCE.replace("== 42", "== 43"): "cell-002 ('assert value == 43') differs from 01_one.py",
        SOURCE + "\n# %%\nvalue\n": "ends before cell-003, 3 cells for 4 in 01_one.py",
        SOURCE.split("\n# %%\nassert")[0]: "goes on after cell-002, 3 cells for 2 in 01_one.py",
    }.items():
        path.write_text(changed)
        status, output = check(execution, monkeypatch, capsys)
        assert (status, output.split("\n")[0]) == (1, f"01_one.ipynb: {complaint}")


@pytest.mark.filterwarnings("default")  # cells written here have no ids
def test_a_check_notices_a_cell_that_was_never_executed(execution, tmp_path, monkeypatch, capsys):
    path = tmp_path / "01_one.py"
    nbformat.write(jupytext.reads(SOURCE, fmt="py:percent"), path.with_suffix(".ipynb"))
    status, output = check(execution, monkeypatch, capsys)
    assert (status, output.split("\n")[0]) == (1, "01_one.ipynb: cell-001 ('value = 6 * 7') was never executed")


def test_live_views_are_dropped_and_stills_kept(execution):
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "VBox()"}
    outputs = [{"data": dict(view)}, {"data": {**view, "image/png": "still"}}, {"text": "42"}]
    kept = execution.static_outputs(outputs)
    assert kept == [{"data": {"text/plain": "VBox()", "image/png": "still"}}, {"text": "42"}]


def test_an_unknown_name_is_one_sentence(execution):
    with pytest.raises(SystemExit, match="no source named 02_two"):
        execution.sources(["02_two"])
