"""The list of theorems: one module per entry in `theory/theorems`, loaded only when asked for."""

from __future__ import annotations

import difflib
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from theory.theorem import Theorem

PLANNED = {
    "S": 18,
    "O": 10,
    "K": 7,
    "G": 6,
    "C": 17,
    "V": 13,
}  # sections and their sizes; an id without a file is not run
FOLDER = Path(__file__).parent / "theorems"


def module_names() -> dict[str, str]:
    """Theorem id -> module name, from file names such as `s04_terminal_prefix.py`; in catalogue order."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        match = re.fullmatch(r"([a-z])(\d+)_\w+", path.stem)
        if match:
            found[f"{match[1].upper()}{int(match[2])}"] = path.stem
    order = list(PLANNED)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), int(item[0][1:]))))


def find(theorem_id: str) -> Theorem:
    """Return the theorem with this id.

    Raises
    ------
    InputError   no such id (names the nearest)
    """
    names = module_names()
    key = theorem_id.strip().upper()
    if key[1:].isdigit() and 1 <= int(key[1:]) <= PLANNED.get(key[:1], 0) and key not in names:
        raise InputError(
            "this theorem is planned and not decided yet",
            found=key,
            hint=f"decided so far: sections {_sections(names)}",
        )
    if key not in names:
        near = difflib.get_close_matches(key, names, n=3, cutoff=0.0)
        raise InputError("no theorem has this id", found=repr(theorem_id), hint="nearest: " + ", ".join(near))
    theorem = importlib.import_module(f"theory.theorems.{names[key]}").THEOREM
    if theorem.id != key:
        raise InputError(f"the file of {key} must define {key}", found=theorem.id)
    return theorem


def _sections(names: dict[str, str]) -> str:
    return ", ".join(dict.fromkeys(i[0] for i in names))


def catalogue() -> list[Theorem]:
    """All theorems in catalogue order."""
    return [find(i) for i in module_names()]
