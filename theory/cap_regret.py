"""What each way of choosing a cap costs: exact error at the cap against the least possible, law by law and n by n.

Regret is error / least error - 1, for the constant signal; it is 0 for the exact cap and for nothing else in general.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from testbed.weighting.cap_law import capped_error
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.weight_families import LogNormal, TwoPoint, UniformRatio
from testbed.weighting.weight_family import WeightFamily
from theory.cap_cases import CapCase, real_weights

DRAWS = (4, 16, 64, 256, 1024)
METHODS = {"O1": "exact", "O3": "d2", "O4": "chi2", "O9": "sharp"}  # catalogue entry -> method of `optimal_cap`
CHOICES = (*METHODS, "sqrt_n", "two", "none")


def laws() -> dict[str, WeightFamily]:
    """Name -> law of the weight: three families, from close to far, and three recorded next-token laws; built anew each time."""
    return {
        "log_normal_0p5": LogNormal(0.5),
        "log_normal_1p2": LogNormal(1.2),
        "log_normal_2": LogNormal(2.0),
        "two_point_0p9_30": TwoPoint(0.9, 30.0),
        "two_point_0_4": TwoPoint(0.0, 4.0),
        "uniform_ratio_0p8": UniformRatio(0.8),
        "recorded_close": real_weights(11, "v1_int8w"),
        "recorded_stale": real_weights(6, "v0_bf16"),
        "recorded_heavy": real_weights(2, "v1_int8_dynamic"),
    }


def chosen_caps(law: WeightFamily, n: int) -> dict[str, float]:
    """Cap of every choice: the catalogue's four, Ionides' sqrt n, the constant 2, none.

    Examples
    --------
    >>> {k: round(c, 2) for k, c in chosen_caps(TwoPoint(0.0, 4.0), 16).items()}
    {'O1': 3.37, 'O3': 3.17, 'O4': 3.62, 'O9': 4.25, 'sqrt_n': 4.0, 'two': 2.0, 'none': inf}
    """
    found = {entry: float(optimal_cap(law, None, n, method=method)) for entry, method in METHODS.items()}
    return {**found, "sqrt_n": sqrt(n), "two": 2.0, "none": inf}


def regret_cases() -> list[CapCase]:
    """One case per law and n, looked at at every chosen cap but the infinite one."""
    return [
        CapCase(name=f"{name}_n{n}", law=law, n=n, caps=tuple(chosen_caps(law, n).values())[:-1])
        for name, law in laws().items()
        for n in DRAWS
    ]


def regret_rows() -> list[dict[str, Any]]:
    """Exact errors and regrets of every choice, one row per law and n.

    Returns
    -------
    list of dict   law, n, d2, cap: choice -> cap, mse: choice -> error, regret: choice -> error over that at O1, minus 1
    """
    rows = []
    for name, law in laws().items():
        for n in DRAWS:
            caps = chosen_caps(law, n)
            errors = {choice: capped_error(law, cap=cap, n=n).mse for choice, cap in caps.items()}
            regret = {choice: error / errors["O1"] - 1 for choice, error in errors.items()}
            rows.append({"law": name, "n": n, "d2": law.second_moment, "cap": caps, "mse": errors, "regret": regret})
    return rows


def regret_table() -> list[dict[str, Any]]:
    """Rows for a reader: exact cap and its error, then the regret of every other choice."""
    return [
        {"law": row["law"], "n": row["n"], "d2": row["d2"], "c*": row["cap"]["O1"], "mse*": row["mse"]["O1"]}
        | {choice: row["regret"][choice] for choice in CHOICES[1:]}
        for row in regret_rows()
    ]
