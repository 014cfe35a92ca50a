"""Exact mean squared error against the cap, with the exact, d2, chi2 and sharp choices marked, for laws and n."""

from __future__ import annotations

from typing import Any

from testbed.weighting.cap_bounds import chi2_bound, d2_bound
from testbed.weighting.cap_law import capped_error
from testbed.weighting.optimal_cap import optimal_cap
from theory.cap_regret import METHODS, laws

LAWS = ("log_normal_1p2", "two_point_0p9_30", "recorded_stale")
DRAWS = (16, 64, 256)
LEAST, MOST, POINTS = 0.5, 64.0, 113  # caps, evenly spaced in their logarithm


def record() -> dict[str, Any]:
    """Return error curves and marks, one entry per law and n.

    Returns
    -------
    dict   cap [113]; curves: law, n, d2, mse [113], d2_bound [113], chi2_bound [113] (None where the cap is not above 1),
           uncapped (chi2/n), marks: method -> cap, mse
    """
    caps = [LEAST * (MOST / LEAST) ** (k / (POINTS - 1)) for k in range(POINTS)]
    curves, found = [], laws()
    for name in LAWS:
        law = found[name]
        d2 = law.second_moment
        for n in DRAWS:
            marks = {method: optimal_cap(law, None, n, method=method) for method in METHODS.values()}
            curves.append({
                "law": name, "n": n, "d2": d2,
                "mse": [capped_error(law, cap=c, n=n).mse for c in caps],
                "d2_bound": [d2_bound(d2, n, c) for c in caps],
                "chi2_bound": [chi2_bound(d2 - 1, n, c) if c > 1 else None for c in caps],
                "uncapped": (d2 - 1) / n,
                "marks": {method: {"cap": float(cap), "mse": cap.mse} for method, cap in marks.items()},
            })  # fmt: skip
    return {"cap": caps, "curves": curves}
