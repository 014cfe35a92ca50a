"""What a cap or a mask costs by confidence: bias and second moment of the weights of drawn tokens under calibrated noise."""

from __future__ import annotations

from typing import Any

import torch

from testbed.weighting.rules import weigh
from theory.calibrated_tokens import moe_tokens

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "TIS(2)": ("tis", {"cap": 2.0}),
    "TIS(1.13)": ("tis", {"cap": 1.13}),
    "IcePop": ("icepop", {}),
    "CIS, odds": ("cis", {}),
    "CIS, linear": ("cis", {"cap_form": "linear"}),
}
SOURCE = "calibrated law, MoE"


def record() -> dict[str, Any]:
    """Return exact means given that a token of the range was drawn; of weights alone, for the test function 1.

    Returns
    -------
    dict   curves: source -> model, ranges [5], share [5] of drawn tokens, arms, bias by range: arm -> [5] of (value, low, high)
           for E[w - k], the three being one number where the mean is exact; second moment by range: arm -> [5] E[w^2];
           acted by range: arm -> [5] shares; that of the exact ratio is infinite in every range (C5)
    """
    tokens = moe_tokens()
    ratio = weigh("exact", tokens.batch).raw
    bias, second, acted = {}, {}, {}
    for arm, (rule, params) in ARMS.items():
        w = weigh(rule, tokens.batch, **params)
        bias[arm] = [[b] * 3 for b in tokens.by_row(w.value - ratio).tolist()]
        second[arm] = tokens.by_row(w.value**2).tolist()
        acted[arm] = tokens.by_row(w.acted.to(torch.float64)).tolist()
    curve = {
        "model": "MoE", "ranges": list(tokens.names), "share": tokens.share.tolist(), "arms": list(ARMS),
        "bias by range": bias, "second moment by range": second, "acted by range": acted,
    }  # fmt: skip
    return {"curves": {SOURCE: curve}}
