"""Regret of every way to choose a cap: exact error at O3's, O4's, O9's, sqrt n, 2 and no cap against O1's."""

from __future__ import annotations

from math import isfinite
from typing import Any

from theory.cap_regret import CHOICES, regret_rows


def record() -> dict[str, Any]:
    """Return the rows of `theory.cap_regret`, and the largest regret of each choice over all of them.

    Returns
    -------
    dict   choices [7]; rows: law, n, d2, cap (None: no cap), mse, regret, by choice; largest: choice -> regret, law, n
    """
    rows = regret_rows()
    largest = {}
    for choice in CHOICES:
        worst = max(rows, key=lambda row: row["regret"][choice])
        largest[choice] = {"regret": worst["regret"][choice], "law": worst["law"], "n": worst["n"]}
    return {
        "choices": list(CHOICES),
        "rows": [{**row, "cap": {k: c if isfinite(c) else None for k, c in row["cap"].items()}} for row in rows],
        "largest": largest,
    }
