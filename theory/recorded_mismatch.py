"""Displacements between the engines of the bundled rollouts: the sampler's log-probs against float32 ones of the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from testbed.diagnosis.dump import load_dump
from testbed.sample_data import next_token_laws, partial_rollouts_path
from testbed.weighting.confidence import displacement
from testbed.weighting.granularity import log_ratios

ENGINES = {"bf16": (0, "v0_bf16", "v0_f32"), "int8": (1, "v1_int8w", "v1_f32")}  # segment, sampler and its float32 twin
EDGES = {
    "p<0.5": (0.0, 0.5),
    "0.5-0.9": (0.5, 0.9),
    "0.9-0.99": (0.9, 0.99),
    "0.99-0.999": (0.99, 0.999),
    "p>0.999": (0.999, 1.0),
}
ENOUGH = 500  # tokens of a bin that is worth a median


@dataclass(frozen=True)
class Recorded:
    """Tokens one engine drew: trainer's probability, displacement, log ratio; per-logit perturbations at 12 positions.

    `response` and `position` say of which response a token and at which position a perturbation is: what is resampled.
    """

    p: np.ndarray
    eps: np.ndarray
    log_ratio: np.ndarray
    response: np.ndarray
    delta: np.ndarray
    position: np.ndarray

    def within(self, low: float, high: float) -> np.ndarray:
        """Tokens with low <= p < high."""
        return (self.p >= low) & (self.p < high)


def mad(values: np.ndarray) -> float:
    """Median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))


@lru_cache(maxsize=2)
def recorded(engine: str) -> Recorded:
    """Read what one engine drew.

    Examples
    --------
    >>> found = recorded("bf16")
    >>> len(found.p), bool(np.isfinite(found.eps).all())
    (2403, True)
    """
    segment, sampler, twin = ENGINES[engine]
    batch = load_dump(partial_rollouts_path(), target="logp_" + twin, behavior="logp_" + sampler)
    mine = batch.mask & (batch.segment == segment)
    laws = next_token_laws()
    words = laws.logp_behavior[sampler][:, :-1], laws.logp_behavior[twin][:, :-1]  # the last entry is a bucket
    delta = torch.where(torch.isfinite(words[0]) & torch.isfinite(words[1]), words[0] - words[1], torch.nan)
    delta = delta - delta.nanmedian(1, keepdim=True).values  # a constant on all logits of a position moves no law
    return Recorded(
        p=batch.logp_target[mine].exp().numpy(),
        eps=displacement(batch.logp_target, batch.logp_behavior)[mine].numpy(),
        log_ratio=log_ratios(batch, "token")[mine].numpy(),
        response=mine.nonzero()[:, 0].numpy(),
        delta=delta[torch.isfinite(delta)].numpy(),
        position=torch.isfinite(delta).nonzero()[:, 0].numpy(),
    )


def confidence_bins(engine: str) -> list[dict[str, Any]]:
    """Statistics of CIS Table 7 by the trainer's confidence, for bins with enough tokens."""
    found, rows = recorded(engine), []
    for name, (low, high) in EDGES.items():
        inside = found.within(low, high)
        if inside.sum() >= ENOUGH:
            eps = found.eps[inside]
            rows.append(
                {
                    "bin": name, "tokens": int(inside.sum()), "MAD(epsilon)": mad(eps),
                    "MAD(log k)": mad(found.log_ratio[inside]),
                    "q05(epsilon)": float(np.quantile(eps, 0.05)), "q95(epsilon)": float(np.quantile(eps, 0.95)),
                    "least": 1 - float(found.p[inside].max()), "largest": 1 - float(found.p[inside].min()),
                }
            )  # fmt: skip
    return rows


def spread(engine: str) -> dict[str, float]:
    """Statistics of CIS Tables 3, 5 and 6 for one engine."""
    found = recorded(engine)
    eps, delta = found.eps[np.isfinite(found.eps)], np.abs(found.delta)
    return {
        "sd(delta)": float(found.delta.std()), "q99(|delta|)": float(np.quantile(delta, 0.99)),
        "Pr(|delta|>0.5)": float((delta > 0.5).mean()), "Pr(|delta|>1)": float((delta > 1).mean()),
        "sd(epsilon)": float(eps.std()), "q95(|epsilon|)": float(np.quantile(np.abs(eps), 0.95)),
        "q99(|epsilon|)": float(np.quantile(np.abs(eps), 0.99)), "finite": float(np.isfinite(found.eps).mean()),
    }  # fmt: skip
