"""Settings that come from a file: every field is checked, and what is wrong is named with its value and what is allowed."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from testbed.core.errors import InputError

Settings = TypeVar("Settings")


def from_plain(kind: type[Settings], values: Mapping[str, Any], place: str = "") -> Settings:
    """Make a dataclass of plain values.

    Parameters
    ----------
    kind : type                    a dataclass that checks its own fields
    values : mapping               field -> value, as a TOML or JSON file holds them; lists become tuples, and "none" becomes
                                   None where a field may be None, for which TOML has no word
    place : str                    where they were read, for messages

    Raises
    ------
    InputError   a field that does not exist (naming the nearest), and whatever the dataclass refuses

    Examples
    --------
    >>> from testbed.training.recipe import Recipe
    >>> from_plain(Recipe, {"steps": 3}).steps
    3
    >>> from_plain(Recipe, {"step": 3}, "lab.toml")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: lab.toml must hold fields that exist; found `step` = 3 (did you mean `steps`?)
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "known: " + ", ".join(known)
            raise InputError(
                f"{place or 'settings'} must hold fields that exist", found=f"`{name}` = {value!r}", hint=hint
            )
    optional = {field.name for field in fields(kind) if "None" in str(field.type)}  # type: ignore[arg-type]
    nothing = {name: None for name in optional if values.get(name) == "none"}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**given | nothing)


def written(values: Mapping[str, Any]) -> str:
    """Fields as TOML writes them.

    Examples
    --------
    >>> written({"system": "areal", "system_params": {"ahead": 4}, "cached": True})
    'system = "areal", system_params.ahead = 4, cached = true'
    """
    parts: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            parts += [f"{name}.{inner}" for inner in written(value).split(", ")]
        else:
            parts.append(f"{name} = {json.dumps(value)}")
    return ", ".join(parts)


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises
    ------
    InputError

    Examples
    --------
    >>> require_choice("scale", "sd", ("none", "std"))
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `scale` must be one of none, std; found 'sd' (did you mean std?)
    """
    if not isinstance(value, str) or value not in choices:
        near = difflib.get_close_matches(str(value), list(choices), n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise InputError(f"`{name}` must be one of {', '.join(choices)}", found=repr(value), hint=hint)


def require_table(name: str, value: object) -> None:
    """Refuse what is no table of named values.

    Raises
    ------
    InputError

    Examples
    --------
    >>> require_table("rule_params", 2)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `rule_params` must be a table, { name = value }; found 2
    """
    if not isinstance(value, Mapping):
        raise InputError(f"`{name}` must be a table, {{ name = value }}", found=repr(value))


def require_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises
    ------
    InputError

    Examples
    --------
    >>> require_text("title", 3)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `title` must be text in quotes; found 3
    """
    if not isinstance(value, str):
        raise InputError(f"`{name}` must be text in quotes", found=repr(value))


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least `least`.

    Raises
    ------
    InputError
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"`{name}` must be a whole number >= {least}", found=repr(value))


def require_number(
    name: str, value: object, *, least: float = 0.0, most: float = math.inf, positive: bool = False
) -> None:
    """Refuse what is no finite number in [least, most], or in (0, most] if it must be positive.

    Raises
    ------
    InputError
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most or (positive and not value > 0):  # type: ignore[operator]
        allowed = "> 0" if positive else f">= {least:g}"
        allowed += f" and <= {most:g}" if most < math.inf else ""
        raise InputError(f"`{name}` must be a finite number {allowed}", found=repr(value))
