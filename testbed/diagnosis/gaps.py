"""How far apart the policies are, token by token: mismatch, drift, and their sum, for each segment and for all.

    total = target - behavior = drift + mismatch,   drift = target - proximal,   mismatch = proximal - behavior

Mismatch is what two implementations of the same weights disagree about; drift is what updates have changed since the
token was drawn. They are told apart only where `logp_proximal` (the drawing weights, in the trainer's numerics) was
recorded. The behavior drew the tokens, so k1 and k3 are unbiased for a divergence *from the behavior*; for the drift,
which starts at the proximal policy, they are averages over another policy's tokens, and said to be.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_means import token_mean_interval
from testbed.stats.divergence import kl_k1, kl_k3
from testbed.weighting.granularity import log_ratios

GAPS = {  # name -> numerator, denominator, what k1 and k3 estimate
    "mismatch": ("proximal", "behavior", "KL(behavior || proximal)"),
    "drift": ("target", "proximal", "KL(proximal || target), averaged over tokens the behavior drew"),
    "total": ("target", "behavior", "KL(behavior || target)"),
}
FAR = 0.1  # nats: a ratio outside [0.905, 1.105]
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


def gap_records(batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """One record per gap and segment, then per gap over all segments (segment None).

    Parameters
    ----------
    batch : SegmentedBatch   with at least one real token; segment labels without tokens are left out
    seeds : SeedTree         stream of the bootstrap

    Returns
    -------
    list of dict   gap, direction, segment, responses, tokens, impossible (target probability 0; left out of what
                   follows), mean, sd, kl_k1, kl_k3 (nats per token), kl_k3_interval, share_far, quantiles, largest
    """
    recorded = [name for name in GAPS if name == "total" or batch.logp_proximal is not None]
    records = []
    for name in recorded:
        numerator, denominator, direction = GAPS[name]
        ratio = log_ratios(batch, numerator=numerator, denominator=denominator).double()
        for segment, selected in segments_and_all(batch):
            record = {"gap": name, "direction": direction, "segment": segment}
            records.append(record | _gap(ratio, selected, seeds[name][str(segment)]))
    return records


def segments_and_all(batch: SegmentedBatch) -> list[tuple[int | None, Bool[Tensor, "B T"]]]:
    """Each label that has tokens, with the tokens it has; then None with all tokens, if there are several labels."""
    labels = [int(label) for label in batch.segment[batch.mask].unique()]
    each: list[tuple[int | None, Tensor]] = [(label, batch.mask & (batch.segment == label)) for label in labels]
    return each + ([(None, batch.mask)] if len(labels) > 1 else [])


def _gap(ratio: Float[Tensor, "B T"], selected: Bool[Tensor, "B T"], seeds: SeedTree) -> dict[str, Any]:
    possible = selected & ~torch.isneginf(ratio)
    values = ratio[possible]
    record: dict[str, Any] = {
        "responses": int(selected.any(1).sum()),
        "tokens": int(selected.sum()),
        "impossible": int((selected & ~possible).sum()),
    }
    if values.numel() == 0:
        return record
    k3 = kl_k3(ratio, possible)
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    at = torch.where(possible, ratio.abs(), -1.0).argmax()
    row, position = divmod(int(at), ratio.shape[1])
    return record | {
        "mean": float(values.mean()),
        "sd": float(values.std(correction=0)),
        "kl_k1": float(kl_k1(ratio, possible)[possible].mean()),
        "kl_k3": float(k3[possible].mean()),
        "kl_k3_interval": token_mean_interval(k3, possible, seeds),
        "share_far": float((values.abs() > FAR).double().mean()),
        "quantiles": dict(zip(map(str, QUANTILES), _quantiles(values, levels), strict=True)),
        "largest": {"log_ratio": float(ratio[row, position]), "response": row, "position": position},
    }


def _quantiles(values: Float[Tensor, " n"], levels: Float[Tensor, " q"]) -> list[float]:
    """Linear interpolation between order statistics; unlike `torch.quantile`, of any number of values."""
    ordered = values.sort().values
    place = levels * (len(ordered) - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], place - low).tolist()
