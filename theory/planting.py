"""Planting a bug: replace a function of the library everywhere it is used, for the length of a `with` block.

`from x import f` copies the binding, so replacing `x.f` alone would leave the importers right; every loaded module of the
project that holds the same object gets the replacement, and gets the original back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PROJECT = ("testbed", "theory")


@contextmanager
def planted(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace `owner.name` (a module's function or a class's method) by `make(original)`.

    Examples
    --------
    >>> from testbed.stats import weight_statistics
    >>> from testbed import ess
    >>> import torch
    >>> with planted(weight_statistics, "ess", lambda right: lambda *a, **k: -1.0):
    ...     weight_statistics.ess(torch.ones(3))
    -1.0
    >>> float(weight_statistics.ess(torch.ones(3)))
    3.0
    """
    original = owner.__dict__[name]
    wrong = make(original.__func__ if isinstance(original, staticmethod) else original)
    held: list[tuple[Any, str]] = [(owner, name)]
    if not isinstance(owner, type):
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] in PROJECT]:
            held += [(module, key) for key, value in list(vars(module).items()) if value is original]
    for place, key in held:
        setattr(place, key, staticmethod(wrong) if isinstance(original, staticmethod) else wrong)
    try:
        yield
    finally:
        for place, key in held:
            setattr(place, key, original)
        # a lazy export that was first asked for inside the block has stored the wrong function: take that back, too
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] in PROJECT]:
            for key in [k for k, value in vars(module).items() if value is wrong]:
                setattr(module, key, original)
