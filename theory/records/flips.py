"""Spread of the perturbation by the number of layers that route a token to other experts, beside the printed table."""

from __future__ import annotations

from typing import Any

from testbed.policies.noise.calibration import LAYERS, dense_noise, moe_noise
from testbed.policies.noise.reported import FLIP_BINS, FLIP_NAMES, reported


def record() -> dict[str, Any]:
    """Return the calibrated law's spread and tail at every number of layers, and the paper's Table 4.

    Returns
    -------
    dict   curves: source -> flips [25], share [25] of positions, sd [25] in nats, beyond half [25]: P(|delta| > 1/2);
           dense: source -> sd, beyond half; printed: one entry per bin: name, low, high, sd, beyond half, share;
           binned: the same of the calibrated law
    """
    moe, dense = moe_noise(), dense_noise()
    alone = [moe.given(n, n) for n in range(LAYERS + 1)]
    curve = {
        "flips": list(range(LAYERS + 1)), "share": list(moe.shares), "sd": [law.sd for law in alone],
        "beyond half": [law.tail(0.5) for law in alone],
    }  # fmt: skip
    printed, binned = [], []
    for name, (low, high) in zip(FLIP_NAMES, FLIP_BINS, strict=True):
        ends, law = {"name": name, "low": low, "high": high}, moe.given(low, high)
        rows = {"sd": "sd(delta)", "beyond half": "Pr(|delta|>0.5) (%)", "share": "Positions (%)"}
        printed.append(ends | {key: reported(4, row, name).value for key, row in rows.items()})
        binned.append(ends | {"sd": law.sd, "beyond half": law.tail(0.5), "share": sum(moe.shares[low : high + 1])})
    level = {"calibrated law, dense": {"sd": dense.sd, "beyond half": dense.tail(0.5)}}
    return {"curves": {"calibrated law, MoE": curve, "dense": level}, "printed": printed, "binned": binned}
