"""Checks of rule parameters, each with a message naming the parameter, the rule it broke and what was found."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real

from testbed.core.errors import InputError


def number(name: str, value: object) -> float:
    """Return a real parameter as a float; refuse NaN, booleans and everything that is not one number.

    Examples
    --------
    >>> number("cap", 2)
    2.0
    >>> number("cap", float("nan"))
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `cap` must be a number; found nan
    """
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(float(value)):
        raise InputError(f"`{name}` must be a number", found=repr(value))
    return float(value)


def positive(name: str, value: object) -> float:
    """Return a parameter that must be > 0 (infinity means no bound).

    Examples
    --------
    >>> positive("cap", 0)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `cap` must be > 0; found 0.0 (inf means no cap)
    """
    result = number(name, value)
    if result <= 0:
        raise InputError(f"`{name}` must be > 0", found=result, hint=f"inf means no {name}")
    return result


def above(name: str, value: object, low: float) -> float:
    """Return a parameter that must be > low."""
    result = number(name, value)
    if result <= low:
        raise InputError(f"`{name}` must be > {low:g}", found=result)
    return result


def at_least(name: str, value: object, low: float, high: float = math.inf) -> float:
    """Return a parameter that must lie in [low, high]."""
    result = number(name, value)
    if not low <= result <= high:
        region = f"must be >= {low:g}" if high == math.inf else f"must lie in [{low:g}, {high:g}]"
        raise InputError(f"`{name}` {region}", found=result)
    return result


def band(low: object, high: object, names: tuple[str, str] = ("low", "high")) -> tuple[float, float]:
    """Return a band of ratios, 0 <= low <= high, high > 0.

    Examples
    --------
    >>> band(5.0, 0.5)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `low` must not exceed `high`; found low=5.0, high=0.5 (on target/behavior)
    """
    bottom, top = at_least(names[0], low, 0.0), positive(names[1], high)
    if bottom > top:
        raise InputError(
            f"`{names[0]}` must not exceed `{names[1]}`",
            found=f"{names[0]}={bottom}, {names[1]}={top}",
            hint="on target/behavior",
        )
    return bottom, top


def interval(eps_low: object, eps_high: object) -> tuple[float, float]:
    """Return the interval [1 - eps_low, 1 + eps_high] of ratios; eps_low >= 1 means no lower side.

    Examples
    --------
    >>> interval(1.0, 4.0)
    (0.0, 5.0)
    """
    return max(0.0, 1.0 - at_least("eps_low", eps_low, 0.0)), 1.0 + at_least("eps_high", eps_high, 0.0)


def log(value: float) -> float:
    """Natural logarithm with log 0 = -inf and log inf = inf."""
    return math.log(value) if value > 0 else -math.inf


def nearest(word: object, names: Iterable[str]) -> str:
    """Return a hint naming the known words closest to a misspelt one.

    Examples
    --------
    >>> nearest("ice_pop", ["tis", "icepop"])
    'did you mean icepop?'
    """
    known, given = sorted(names), str(word).lower()
    begin = [name for name in known if given and name.startswith(given)]
    alike = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    close = [*begin, *(name for name in alike if name not in begin)][:3]
    return f"did you mean {', '.join(close)}?" if close else "known: " + ", ".join(known)
