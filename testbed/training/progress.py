"""Progress of work of known length: a bar on a terminal (on stderr), now and then a plain line in a pipe (on stdout)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINES = 10  # of a whole run in a pipe
SILENCE = 60.0  # seconds after which a line is due anyway, where the remaining time is told


@contextmanager
def steps_progress(total: int, done: int = 0) -> Iterator[Callable[[int, float], None]]:
    """Yield a function of (steps done, loss) to be called after every step."""
    with counted_progress("step", total, done, remaining=False) as report:
        yield lambda step, loss: report(step, f"loss {loss:.4f}")


@contextmanager
def counted_progress(
    unit: str, total: int, done: int = 0, *, remaining: bool = True
) -> Iterator[Callable[[int, str], None]]:
    """Yield a function of (units done, how it goes) to be called after every unit.

    Parameters
    ----------
    unit : str           what is counted
    total, done : int    units there are, and were done before
    remaining : bool     whether to tell the remaining time in a pipe; a bar does so anyway

    Examples
    --------
    >>> with counted_progress("update", total=2, remaining=False) as report:
    ...     report(2, "reward 0.5")
    update 2/2  reward 0.5  0.0 s
    """
    started = last = time.perf_counter()
    first: list[
        float
    ] = []  # count and time of the first report: what comes before it, such as a warm start, is no unit
    if not sys.stdout.isatty():

        def plain(count: int, words: str) -> None:
            nonlocal last
            now = time.perf_counter()
            first.extend(() if first else (count, now))
            due = count == total or count % max(1, total // LINES) == 0
            if due or (remaining and now - last >= SILENCE):
                last, spent = now, now - started
                since, begun = first
                left = f", {duration((now - begun) / (count - since) * (total - count))} left" if count > since else ""
                told = duration(spent) + left if remaining and count < total else f"{spent:.1f} s"
                print("  ".join(filter(None, (f"{unit} {count}/{total}", words, told))), flush=True)

        yield plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(unit),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda count, words: bar.update(task, completed=count, description=words)


def duration(seconds: float) -> str:
    """Say a time in the unit that suits it.

    Examples
    --------
    >>> duration(4.21), duration(75.0), duration(7e3), duration(2e5)
    ('4.2 s', '1.2 min', '1.9 h', '2.3 days')
    """
    for most, per, unit in ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < most:
            return f"{seconds / per:.1f} {unit}"
    return f"{seconds / 86_400:.1f} days"
