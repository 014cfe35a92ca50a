"""The tables of a theorem (its `table` in the verdict): numbers that are no claims, folded away until asked for."""

from __future__ import annotations

from typing import Any

from theory.report_parts.markup import Markup, Piece, folded, safe, table
from theory.report_parts.notation import number
from theory.row_blocks import row_blocks


def tables(rows: list[dict[str, Any]]) -> Markup | None:
    """Every run of rows with the same columns as a table of its own; None without rows.

    Examples
    --------
    >>> found = tables([{"law": "a", "n": 4}, {"law": "b", "n": 16}, {"set": "tie", "gap": 0.5}])
    >>> found.count("<table"), "2 tables, 3 rows" in found, tables([])
    (2, True, None)
    """
    if not rows:
        return None
    blocks = row_blocks(rows)
    made = [_table([dict(row) for row in block]) for block in blocks]
    several = f"{len(blocks)} tables, " if len(blocks) > 1 else ""
    return folded(f"The numbers: {several}{len(rows)} rows", safe(*made))


def _table(block: list[dict[str, Any]]) -> Markup:
    header = list(block[0])
    numbers = [i for i, name in enumerate(header) if not isinstance(block[0][name], str)]
    return table(header, [[_cell(row[name]) for name in header] for row in block], numbers=numbers, stack=False)


def _cell(value: Any) -> Piece:
    return value if isinstance(value, str) and value not in ("inf", "-inf", "nan") else number(value, 3)
