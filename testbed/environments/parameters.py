"""Checks of a task's parameters: each complaint names the parameter, what it may be, and what it was."""

from __future__ import annotations

from testbed.core.errors import InputError


def require_whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number in least..most.

    Raises
    ------
    InputError   another type (True and False are no numbers), or out of range

    Examples
    --------
    >>> require_whole("bits", 99, 1, 39)
    Traceback (most recent call last):
    testbed.core.errors.InputError: `bits` must be a whole number in 1..39; found 99
    """
    allowed = f">= {least}" if most is None else f"in {least}..{most}"
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise InputError(f"`{name}` must be a whole number {allowed}", found=repr(value))
    return value


def require_flag(name: str, value: object) -> bool:
    """Return True or False.

    Raises
    ------
    InputError   anything else
    """
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be true or false", found=repr(value))
    return value
