"""Progress: a bar on a terminal (on stderr), plain lines in a pipe (on stdout)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(verb: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that reports one finished item with its line of text.

    On a terminal the lines scroll above a bar; in a pipe they are printed as they come.
    """
    if not sys.stdout.isatty():

        def plain(line: str) -> None:
            try:
                print(line, flush=True)
            except BrokenPipeError:  # the reader, `head` for instance, has seen enough; the work and its record go on
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

        yield plain
        return
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)

        def advance(line: str) -> None:
            bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
            bar.advance(task)

        yield advance
