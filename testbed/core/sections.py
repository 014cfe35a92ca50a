"""Sections of a printed report: a title, what to conclude, a table, remarks. Rich on a terminal, aligned text in a pipe."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80  # of wrapped text in a pipe; no table may be wider


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section; the first column of the table is text, the others are right-aligned unless named in `text`."""

    title: str
    says: str
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    remarks: Sequence[str] = ()
    text: tuple[str, ...] = ()


def print_sections(sections: Sequence[Section]) -> None:
    """Print to stdout."""
    if sys.stdout.isatty():
        _print_rich(sections)
    else:
        print("\n\n".join("\n".join(plain_lines(section)) for section in sections))


def plain_lines(section: Section) -> list[str]:
    """Return the section as lines without control codes.

    Examples
    --------
    >>> plain_lines(Section(title="A", says="One.", header=("x", "y"), rows=[("a", "1"), ("b", "20")]))
    ['A', '  One.', '  x   y', '  a   1', '  b  20']
    """
    lines = [section.title, *_wrapped(section.says), *_plain_table(section)]
    return lines + [line for remark in section.remarks for line in _wrapped(remark)]


def _plain_table(section: Section) -> list[str]:
    """Align the columns; a last column of text is wrapped under itself."""
    if not section.header:
        return []
    table = [section.header, *section.rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(section.header))]
    left = [i == 0 or name in section.text for i, name in enumerate(section.header)]
    before = 2 + sum(width + 2 for width in widths[:-1])
    lines = []
    for row in table:
        parts = (
            textwrap.wrap(row[-1], max(WIDTH - before, 20), break_on_hyphens=False) if left[-1] and len(row) > 1 else []
        )
        cells = [*row[:-1], parts[0]] if parts else list(row)
        aligned = (c.ljust(w) if to else c.rjust(w) for c, w, to in zip(cells, widths, left, strict=True))
        lines += [("  " + "  ".join(aligned)).rstrip(), *(" " * before + part for part in parts[1:])]
    return lines


def _wrapped(text: str) -> list[str]:
    return (
        textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) if text else []
    )


def _print_rich(sections: Sequence[Section]) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for section in sections:
        console.print(Text(section.title, style="bold"))
        console.print(Padding(Text(section.says), (0, 0, 0, 2)))
        if section.header:
            table = Table(
                box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim"
            )
            for i, name in enumerate(section.header):
                left = i == 0 or name in section.text
                wraps = name == section.header[-1] and name in section.text
                table.add_column(name, justify="left" if left else "right", no_wrap=not wraps)
            for row in section.rows:
                table.add_row(*map(Text, row))
            console.print(Padding(table, (0, 0, 0, 2)))
        for remark in section.remarks:
            console.print(Padding(Text(remark), (0, 0, 0, 2)))
        console.print()


def number(value: float | int | None, digits: int = 3) -> str:
    """Format to this many significant digits, with an exponent below 0.001.

    Examples
    --------
    >>> number(0.0012345), number(0.00012345), number(4224), number(123456.0), number(float("inf")), number(1.0)
    ('0.00123', '1.2e-04', '4224', '123456', 'inf', '1.00')
    """
    if value is None or math.isnan(value):
        return "-"
    if isinstance(value, int):
        return str(value)
    if math.isinf(value) or abs(value) >= 10**7:
        return f"{value:.3g}"
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    if abs(value) < 1e-3:
        return "0" if abs(value) < 1e-12 else f"{value:.1e}"
    return f"{value:.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"


def share(value: float) -> str:
    """Format a share in percent.

    Examples
    --------
    >>> share(0.25), share(0.0097), share(0.0), share(1.0), share(0.00001)
    ('25%', '0.97%', '0%', '100%', '<0.01%')
    """
    percent = 100 * value
    if 0 < percent < 0.01:
        return "<0.01%"
    return f"{percent:.0f}%" if percent in (0, 100) or percent >= 10 else f"{percent:.2g}%"


def with_interval(value: float, interval: dict | None, digits: int = 3) -> str:
    """Format a number with its interval."""
    if interval is None:
        return f"{number(value, digits)} [none]"
    return f"{number(value, digits)} [{number(interval['low'], digits)}, {number(interval['high'], digits)}]"
