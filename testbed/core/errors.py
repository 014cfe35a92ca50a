"""Errors a user can act on: the rule that was broken, what was found, and a hint.

Everything the library refuses is an `InputError`; command lines turn it into one sentence and exit status 2.
"""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, said in one sentence.

    Parameters
    ----------
    rule : str     the rule that was broken, e.g. "`cap` must be > 0"
    found : str    what was found instead
    hint : str     what to do about it, or ""

    Examples
    --------
    >>> print(InputError("`cap` must be > 0", found="-1.0", hint="use 'none' for no cap"))
    `cap` must be > 0; found -1.0 (use 'none' for no cap)
    """

    def __init__(self, rule: str, *, found: object, hint: str = "") -> None:
        self.rule = rule
        self.found = str(found)
        self.hint = hint
        super().__init__(f"{rule}; found {found}" + (f" ({hint})" if hint else ""))


class MissingField(InputError):
    """A rule needs an optional field that the batch does not carry."""


class TooLarge(InputError):
    """The exact answer would need more room than the declared limit."""
