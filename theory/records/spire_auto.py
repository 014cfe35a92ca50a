"""Exact error of SPIRE with its default caps against no cap, the constant 2 and sqrt n, in enumerated worlds by staleness."""

from __future__ import annotations

from typing import Any

from theory.spire_errors import CHOICES, DRAWS, LEVELS, SIGNALS, spire_rows, spire_table


def record() -> dict[str, Any]:
    """Return exact errors of the estimates of 1, of the value and of the gradient from n responses.

    Returns
    -------
    dict   choices [4], draws [5], levels: level -> spread of the logits, weight of the behavior in the mixture that draws;
           rows: level, world, n, signal, caps (O1's, of the true law), mse and regret by choice (None: no error to
           compare with), o1_applies, matters; auto_must_win: where O1 says so, with the number of rows, of rows where it
           is strictly least, and of rows where it does not matter; indifferent: level and world of the latter at every n;
           auto_loses: rows where another choice errs less (by more than rounding; never where O1 applies); summary: the
           second table of O6
    """
    rows = [dict(row) for row in spire_rows()]
    constant = [row for row in rows if row["o1_applies"]]
    worlds = list(dict.fromkeys((row["level"], row["world"]) for row in constant))
    matter = {(row["level"], row["world"]) for row in constant if row["matters"]}
    strictly = [row for row in constant if min(r or 0.0 for r in row["regret"].values()) > 0.01]
    loses = [
        {
            "level": r["level"],
            "world": r["world"],
            "n": r["n"],
            "signal": r["signal"],
            "better": choice,
            "regret": regret,
        }
        for r in rows
        for choice, regret in r["regret"].items()
        if regret is not None and regret < -1e-9
    ]
    return {
        "choices": list(CHOICES), "draws": list(DRAWS), "signals": list(SIGNALS),
        "levels": {name: {"spread": spread, "behavior_weight": weight} for name, (spread, weight) in LEVELS.items()},
        "rows": rows,
        "auto_must_win": {
            "where": "constant signal (O1)", "rows": len(constant), "strictly_least": len(strictly),
            "indifferent": sum(not row["matters"] for row in constant),
        },
        "indifferent": [{"level": level, "world": name} for level, name in worlds if (level, name) not in matter],
        "auto_loses": loses, "summary": spire_table(),
    }  # fmt: skip
