"""Every entry of the museum's first half has its piece: both halves of it, and where it was reported."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECTIONS = {  # ratio size; masks and denominators; missing and truncated log-probs; partial rollouts; peers
    "A": (1, 2, 4, 6, 7),
    "B": (9, 10, 12, 14, 16, 18, 19, 20, 22, 23),
    "D": (27, 28),
    "F": (37, 38, 39, 42, 43, 45),
}
ENTRIES = [f"br_{number:02d}" for numbers in SECTIONS.values() for number in numbers] + [f"l_{n}" for n in range(1, 9)]


def complaints(entry, files):
    """Say what is missing of an entry, given name -> source of all test files."""
    own = [name for name in files if re.fullmatch(rf"test_{entry}_[a-z0-9_]+\.py", name)]
    if len(own) != 1:
        return [f"{len(own)} files"]
    tree = ast.parse(files[own[0]])
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = [
        f"no {half}*" for half in ("test_wrong_recipe_", "test_ours_") if not any(t.startswith(half) for t in tests)
    ]
    doc = ast.get_docstring(tree) or ""
    label = entry.replace("_", "-").upper() if entry.startswith("br") else entry.replace("_", "").upper()
    if not doc.startswith(label + ":"):
        found.append("a docstring that does not begin with its label")
    if entry.startswith("br") and not re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", doc):
        found.append("no thread")
    return found


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_has_both_halves(entry):
    assert complaints(entry, {path.name: path.read_text() for path in HERE.glob("test_*.py")}) == []


def test_nothing_else_is_numbered_twice():
    numbers = [re.match(r"test_(br_\d\d|l_\d)_", path.name) for path in HERE.glob("test_*.py")]
    labels = [found[1] for found in numbers if found]
    assert len(labels) == len(set(labels)) and set(ENTRIES) <= set(labels)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            '"""BR-99: x https://github.com/a/b/issues/1."""\ndef test_wrong_recipe_x(): ...\ndef test_ours_x(): ...\n',
            [],
        ),
        ('"""BR-99: x https://github.com/a/b/issues/1."""\ndef test_ours_x(): ...\n', ["no test_wrong_recipe_*"]),
        ('"""BR-99: x."""\ndef test_wrong_recipe_x(): ...\ndef test_ours_x(): ...\n', ["no thread"]),
        (
            '"""No label https://github.com/a/b/pull/1."""\ndef test_wrong_recipe_x(): ...\ndef test_ours_x(): ...\n',
            None,
        ),
    ],
)
def test_the_index_sees_what_is_missing(source, complaint):
    found = complaints("br_99", {"test_br_99_x.py": source})
    assert found == (["a docstring that does not begin with its label"] if complaint is None else complaint)
    assert complaints("br_99", {}) == ["0 files"]
