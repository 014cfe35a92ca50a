"""The table of a theorem, cut where its columns change: one list of rows can hold several tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def row_blocks(rows: Rows) -> list[Rows]:
    """Runs of rows that have the same columns in the same order.

    Examples
    --------
    >>> [len(block) for block in row_blocks([{"a": 1}, {"a": 2}, {"b": 3}])]
    [2, 1]
    """
    return [list(block) for _, block in groupby(rows, key=lambda row: tuple(row))]
