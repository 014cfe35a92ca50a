"""The rules about files: sizes, names, twins, randomness, traces of a machine."""

from __future__ import annotations

import pytest

from tests.architecture import checks

FILES = checks.tree_files()
NAMES = [path.relative_to(checks.ROOT).as_posix() for path in FILES]
PYTHON = {name: path.read_text() for name, path in zip(NAMES, FILES, strict=True) if path.suffix == ".py"}
LIBRARY = {name: text for name, text in PYTHON.items() if name.split("/")[0] in checks.PACKAGES}
LINES = {name: len(text.splitlines()) for name, text in PYTHON.items()}


def test_the_tree_was_found():
    assert {"README.md", "testbed/__init__.py", "tests/architecture/test_tree.py"} <= set(NAMES)
    assert not [name for name in NAMES if name.startswith((".venv/", "out/"))]


def test_no_python_file_is_too_long():
    assert checks.too_long(LINES) == []


def test_the_median_module_is_short():
    assert checks.long_median({name: LINES[name] for name in LIBRARY if not name.endswith("__init__.py")}) == []


def test_no_file_is_too_big():
    assert checks.too_big({name: path.stat().st_size for name, path in zip(NAMES, FILES, strict=True)}) == []


def test_every_module_is_named_after_a_concept():
    assert checks.vague_names(list(PYTHON)) == []


def test_every_notebook_has_its_source():
    assert checks.lonely_notebooks(NAMES) == []


@pytest.mark.parametrize("package", checks.PACKAGES)
def test_library_code_leaves_global_randomness_alone(package):
    texts = {name: text for name, text in LIBRARY.items() if name.startswith(package + "/")}
    assert texts
    assert {name: found for name, text in texts.items() if (found := checks.global_randomness(text))} == {}


def test_nothing_names_a_machine_or_a_registry():
    found = {}
    for name, path in zip(NAMES, FILES, strict=True):
        text = path.read_bytes().decode(errors="ignore")
        if traces := checks.machine_traces(text) if "\0" not in text else []:
            found[name] = traces
    assert found == {}
