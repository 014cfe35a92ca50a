"""Tails of the perturbation of one logit and of the displacement: calibrated laws, recorded rollouts, printed numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import RUNNER_UP, dense_noise, moe_noise
from testbed.policies.noise.fitting import profile_laws
from testbed.policies.noise.reported import reported
from theory.recorded_mismatch import ENGINES, recorded
from theory.resampling import share_beyond

POINTS = np.geomspace(0.01, 4.0, 40)
SEEDS = SeedTree("displacement_tails")
PRINTED = (  # table, row, column, what it is about, where it stands; None: the level is known and the point is printed
    (3, "q99(|delta|)", "Dense", "delta", None), (3, "q99(|delta|)", "MoE", "delta", None),
    (5, "Dense", "Pr(|delta|>0.5)", "delta", 0.5),
    (6, "q95(|epsilon|)", "Dense", "epsilon", None), (6, "q99(|epsilon|)", "Dense", "epsilon", None),
    (6, "q95(|epsilon|)", "MoE", "epsilon", None), (6, "q99(|epsilon|)", "MoE", "epsilon", None),
)  # fmt: skip


def record() -> dict[str, Any]:
    """Return P(|value| > x) for both, by source.

    Returns
    -------
    dict   curves: source -> model, points [40] in nats, delta and epsilon: [40] shares, and for the rollouts also
           delta interval, epsilon interval: [2][40], 95 %, of whole positions and responses drawn anew;
           printed: model, of ("delta" or "epsilon"), x, share: points of the paper's Tables 3, 5 and 6
    """
    curves = {}
    for model, noise in (("Dense", dense_noise()), ("MoE", moe_noise())):
        mixture = noise if model == "Dense" else moe_noise().mixture
        eps = profile_laws(mixture, RUNNER_UP)[1]
        curves[f"calibrated law, {'dense' if model == 'Dense' else model}"] = {
            "model": model, "points": POINTS.tolist(), "delta": [noise.tail(float(x)) for x in POINTS],
            "epsilon": [1 - eps.below(float(x)) + eps.below(-float(x)) for x in POINTS],
        }  # fmt: skip
    for engine in ENGINES:
        found = recorded(engine)
        of = {
            "delta": share_beyond(found.delta, found.position, POINTS, SEEDS[engine]["delta"]),
            "epsilon": share_beyond(found.eps, found.response, POINTS, SEEDS[engine]["epsilon"]),
        }
        curve: dict[str, Any] = {"model": "Dense", "points": POINTS.tolist()}
        for name, tail in of.items():
            curve |= {
                name: tail["share"].tolist(),
                f"{name} interval": [tail["low"].tolist(), tail["high"].tolist()],
            }
        curves[f"rollouts, {engine}"] = curve
    return {"curves": curves, "printed": [_printed(*cell) for cell in PRINTED]}


def _printed(table: int, row: str, column: str, of: str, at: float | None) -> dict[str, Any]:
    value = reported(table, row, column).value
    model = column if at is None else row
    if at is not None:
        return {"model": model, "of": of, "x": at, "share": value}
    return {"model": model, "of": of, "x": value, "share": round(1 - int(row[1:3]) / 100, 2)}
