"""Exports that import their module on first use (PEP 562), so that `--help` loads no numerical library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(
    package: str, modules: dict[str, list[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Build `__getattr__`, `__dir__` and `__all__` for a package from a table module -> names.

    Examples
    --------
    >>> getattr_, dir_, all_ = lazy_exports("testbed.core", {"errors": ["InputError"]})
    >>> all_, getattr_("InputError").__name__
    (['InputError'], 'InputError')
    """
    home = {name: module for module, names in modules.items() for name in names}

    def getattr_(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted(home)

    return getattr_, dir_, sorted(home)
