"""Data behind figures: each module here has `record() -> dict`, computed exactly by the library, in plain lists and numbers.

Figures read the JSON that `python -m theory records` writes and compute nothing themselves.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError


def available() -> dict[str, str]:
    """Return record name -> what it holds, without importing anything.

    Examples
    --------
    >>> [name for name in available() if name.startswith("b")]
    ['bias_readings', 'bound_vs_moment']
    """
    modules = sorted(Path(__file__).parent.glob("*.py"))
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        for path in modules
        if not path.stem.startswith("_")
    }


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names asked for, or all of them if none is.

    Raises
    ------
    InputError   a name that no module here has

    Examples
    --------
    >>> chosen(["regret"])
    ['regret']
    """
    known = available()
    for name in names:
        if name not in known:
            raise InputError("a record must have a known name", found=repr(name), hint="one of " + ", ".join(known))
    return list(names or known)


def record(name: str) -> dict[str, Any]:
    """Compute one record.

    Raises
    ------
    InputError   a name that no module here has
    """
    (known,) = chosen([name])
    return importlib.import_module(f"{__name__}.{known}").record()
