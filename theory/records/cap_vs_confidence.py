"""Largest ratio that each token rule leaves alone, against the trainer's doubt 1 - p."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from testbed.weighting.rules import weigh
from theory.calibrated_tokens import one_segment

LEAST, POINTS = 1e-6, 73  # of 1 - p, evenly spaced in its logarithm up to 1, which is left out
FARTHEST = 60.0  # log of the largest ratio that is tried
CUTS, ROUNDS = 16, 10  # an interval is cut into so many parts so often
RULES: dict[str, tuple[str, dict[str, Any], str]] = {  # name -> rule, parameters, what it does beyond the bound
    "tis_2": ("tis", {"cap": 2.0}, "truncates"),
    "tis_1p13": ("tis", {"cap": 1.13}, "truncates"),
    "cis_odds": ("cis", {}, "truncates"),
    "cis_odds_no_floor": ("cis", {"floor": 0.0}, "truncates"),
    "cis_linear": ("cis", {"cap_form": "linear"}, "truncates"),
    "cis_loglinear": ("cis", {"cap_form": "loglinear"}, "truncates"),
    "icepop": ("icepop", {}, "masks"),
    "mis": ("mis", {}, "masks"),
    "k2_token": ("k2_token", {}, "masks"),
    "k3_token": ("k3_token", {}, "masks"),
    "kpop": ("kpop", {}, "masks"),
    "dppo_tv": ("dppo_tv", {}, "masks"),
    "dppo_kl": ("dppo_kl", {}, "masks"),
}
SAME = {"k1_token": "icepop"}  # rules with the bound of another one


def largest_untouched(rule: str, doubt: np.ndarray, **params: Any) -> np.ndarray:
    """Largest log ratio, per 1 - p, up to which a rule leaves every ratio from 1 on alone; FARTHEST where there is none.

    Found from the library's weights alone, by cutting intervals; an advantage is positive.

    Examples
    --------
    >>> np.exp(largest_untouched("tis", np.array([0.5, 0.01]), cap=2.0)).round(9).tolist()
    [2.0, 2.0]
    """
    log_p = torch.log1p(-torch.from_numpy(doubt))[:, None]
    low, width = torch.zeros_like(log_p), torch.full_like(log_p, FARTHEST)
    steps = torch.arange(1, CUTS + 1, dtype=torch.float64) / CUTS
    for _ in range(ROUNDS):
        tried = low + width * steps
        at = log_p.expand_as(tried)
        w = weigh(rule, one_segment(at, at - tried), torch.ones(len(doubt), dtype=torch.float64), **params)
        low = low + width / CUTS * (~w.acted).long().cumprod(1).sum(1, keepdim=True)
        width = width / CUTS
    return low[:, 0].clamp(max=FARTHEST).numpy()


def record() -> dict[str, Any]:
    """Return the bounds, minus 1: what is left of a ratio's room is what differs between confidences.

    Returns
    -------
    dict   doubt [73]: 1 - p; bounds: name -> rule, params, beyond ("truncates" or "masks"), above_one [73] (None: no bound
           below e^60); same: rule -> name of the one with its bound; floor, crossing: 1 - p where the floor of `cis` begins
           and where its cap is that of tis(2) (C7)
    """
    doubt = np.geomspace(LEAST, 1.0, POINTS + 1)[:-1]
    bounds = {}
    for name, (rule, params, beyond) in RULES.items():
        found = largest_untouched(rule, doubt, **params)
        above = [float(np.expm1(x)) if x < FARTHEST * (1 - 1e-9) else None for x in found]
        bounds[name] = {"rule": rule, "params": params, "beyond": beyond, "above_one": above}
    for rule, twin in SAME.items():
        if not np.array_equal(largest_untouched(rule, doubt), largest_untouched(*_plain(twin, doubt))):
            raise AssertionError(f"{rule} has not the bound of {twin}")
    return {
        "doubt": doubt.tolist(), "bounds": bounds, "same": SAME,
        "floor": 5e-3, "crossing": float((2.0 - 1) / np.expm1(2.3)),
    }  # fmt: skip


def _plain(name: str, doubt: np.ndarray) -> tuple[str, np.ndarray]:
    return RULES[name][0], doubt
