"""Notebooks are executed from their sources, and a notebook that no longer matches its source is noticed."""

from __future__ import annotations

import importlib.util
import json

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
    assert execution.stale(path) == "01_one.ipynb was executed from another 01_one.py"


def test_an_unknown_name_is_one_sentence(execution):
    with pytest.raises(SystemExit, match="no source named 02_two"):
        execution.sources(["02_two"])
