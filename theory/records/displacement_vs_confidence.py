"""Displacement against the trainer's doubt 1 - p: quantiles of eps, and how its spread and that of log k depend on 1 - p."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import RUNNER_UP, confident_moe_noise, moe_noise
from testbed.policies.noise.displacement import GridLaw, displacement_law
from testbed.policies.noise.reported import CONFIDENCE_NAMES, reported
from theory.recorded_mismatch import ENGINES, mad, recorded
from theory.resampling import spread_of

DOUBTS = np.geomspace(1e-6, 0.9, 25)
EDGES = np.array([0.0, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])  # of 1 - p, for the rollouts: few of their tokens are sure
ENOUGH = 40  # tokens of an interval that is worth quantiles
LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)
SEEDS = SeedTree("displacement_vs_confidence")
NAMES = ["mad epsilon", "mad log k", *(f"q{100 * level:.0f}" for level in LEVELS)]


def record() -> dict[str, Any]:
    """Return curves by source; those of the laws are exact, those of the rollouts have intervals.

    Returns
    -------
    dict   curves: source -> model, doubt [U] (for the rollouts the geometric mean of the interval's tokens), q1, q10, q50,
           q90, q99 of eps, mad epsilon, mad log k: [U] nats; for the rollouts also tokens [U] and interval: name -> [2][U],
           95 %, whole responses drawn anew; printed: doubt, mad epsilon, mad log k [5] of CIS Table 7, its doubt being their
           ratio
    """
    rougher = confident_moe_noise()
    scale = [rougher.factor * max(float(u), rougher.floor) ** -rougher.exponent for u in DOUBTS]
    curves = {
        "calibrated law, MoE": _exact(np.ones(len(DOUBTS)).tolist()),
        "calibrated law, MoE, rougher when sure": _exact(scale),
    }
    curves |= {f"rollouts, {engine}": _measured(engine) for engine in ENGINES}
    eps, log_k = (
        [reported(7, name, f"MAD({what})").value for name in CONFIDENCE_NAMES] for what in ("epsilon", "log k")
    )
    printed = {"doubt": [b / a for a, b in zip(eps, log_k, strict=True)], "mad epsilon": eps, "mad log k": log_k}
    return {"curves": curves, "printed": printed}


def _exact(stretch: list[float]) -> dict[str, Any]:
    """Quantiles of the calibrated law at every doubt."""
    noise = moe_noise().mixture
    laws = [displacement_law(noise, float(u), RUNNER_UP, stretch=s) for u, s in zip(DOUBTS, stretch, strict=True)]
    found: dict[str, Any] = {"model": "MoE", "doubt": DOUBTS.tolist()}
    found["mad epsilon"] = [law.mad for law in laws]
    found["mad log k"] = [_mad_of_log_ratio(law, float(u)) for law, u in zip(laws, DOUBTS, strict=True)]
    return found | {f"q{100 * level:.0f}": [law.quantile(level) for law in laws] for level in LEVELS}


def _mad_of_log_ratio(law: GridLaw, doubt: float) -> float:
    """MAD of log k = log(1 + (1-p)(e^eps - 1)), a rising function of eps: the law of log k has the same masses."""
    log_ratio = np.logaddexp(math.log1p(-doubt), math.log(doubt) + law.values)
    return GridLaw(log_ratio, law.mass).mad


def _measured(engine: str) -> dict[str, Any]:
    """Quantiles of the recorded tokens in intervals of 1 - p."""
    found = recorded(engine)
    curve: dict[str, Any] = {"model": "Dense", "doubt": [], "tokens": [], **{name: [] for name in NAMES}}
    ends: dict[str, Any] = {name: [[], []] for name in NAMES}
    place = np.searchsorted(EDGES, 1 - found.p, side="right")
    for number in range(1, len(EDGES)):
        inside = place == number
        if inside.sum() < ENOUGH:
            continue
        tokens = np.stack([found.eps[inside], found.log_ratio[inside]], 1)
        value, low, high = spread_of(_statistics, tokens, found.response[inside], SEEDS[engine][number])
        curve["doubt"].append(float(np.exp(np.log1p(-found.p[inside]).mean())))
        curve["tokens"].append(int(inside.sum()))
        for k, name in enumerate(NAMES):
            curve[name].append(float(value[k]))
            ends[name][0].append(float(low[k]))
            ends[name][1].append(float(high[k]))
    return curve | {"interval": ends}


def _statistics(tokens: np.ndarray) -> np.ndarray:
    eps, log_ratio = tokens.T
    return np.array([mad(eps), mad(log_ratio), *np.quantile(eps, LEVELS)])
