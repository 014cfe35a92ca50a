"""Ctrl-C between two updates rather than inside one: the state that is kept is the state after a whole step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second press interrupts at once, as usual.

    Outside the main thread, where signals cannot be caught, nothing is deferred.

    Examples
    --------
    >>> with deferred_interrupt() as asked:
    ...     before = asked()
    ...     signal.raise_signal(signal.SIGINT)
    ...     before, asked()
    (False, True)
    """
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, usual)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    usual = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, usual)
