"""Progress of a run of known length: a bar on a terminal (on stderr), now and then a plain line in a pipe (on stdout)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINES = 10  # of a whole run in a pipe


@contextmanager
def steps_progress(total: int, done: int = 0) -> Iterator[Callable[[int, float], None]]:
    """Yield a function of (steps done, loss) to be called after every step."""
    started = time.perf_counter()
    if not sys.stdout.isatty():

        def plain(step: int, loss: float) -> None:
            if step == total or step % max(1, total // LINES) == 0:
                print(f"step {step}/{total}  loss {loss:.4f}  {time.perf_counter() - started:.1f} s", flush=True)

        yield plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda step, loss: bar.update(task, completed=step, description=f"loss {loss:.3f}")
