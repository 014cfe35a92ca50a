"""Dumps with one named fault of a stated strength, for the power study of the detectors."""

from __future__ import annotations

import numpy as np
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.simulated_dumps import Sampler, drawn_from, simulated_dump

SAMPLERS = {
    "temperature": {f"T = {t:g}": Sampler(temperature=t) for t in (0.6, 0.8, 0.9, 1.2)},
    "truncated_mass": {
        **{f"top-p {p:g}": Sampler(top_p=p) for p in (0.8, 0.9, 0.95, 0.99)},
        **{f"top-k {k}": Sampler(top_k=k) for k in (2, 8)},
    },
}
CHANGES = {
    "shift_by_one": ("target, a place late", "behavior, a place early"),
    "recomputed": ("by version", "by engine"),
    "version_tags": ("reversed", "shuffled"),
    "low_precision": ("bfloat16", "float16"),
}
DRIFT = 0.15  # nats per version: what tags are judged by; the study of tags has no power without drift


def strengths(fault: str) -> tuple[str, ...]:
    """Return the strengths in which a fault is planted."""
    return tuple(SAMPLERS[fault]) if fault in SAMPLERS else CHANGES[fault]


def planted(fault: str, strength: str, seeds: SeedTree, real: SegmentedBatch | None = None) -> SegmentedBatch | None:
    """Draw a dump with a fault, simulated or (with `real`) a draw of real responses.

    Returns
    -------
    SegmentedBatch   None where the fault needs laws that a real dump does not have, or several versions

    Examples
    --------
    >>> batch = planted("low_precision", "bfloat16", SeedTree("example"))
    >>> sorted(batch.facts.low_precision)
    ['logp_behavior']
    """
    if fault in SAMPLERS:
        return None if real is not None else simulated_dump(seeds, SAMPLERS[fault][strength])
    if fault == "version_tags":
        return None if real is not None else _tagged(simulated_dump(seeds, drift=DRIFT, tagged=True), strength, seeds)
    if real is not None:
        batch = drawn_from(real, seeds)
    else:
        batch = simulated_dump(seeds, drift=DRIFT, tagged=True) if fault == "recomputed" else simulated_dump(seeds)
    if fault == "shift_by_one":
        name, step = ("logp_target", 1) if strength.startswith("target") else ("logp_behavior", -1)
        column = getattr(batch, name)
        return batch.replaced(**{name: torch.where(batch.mask, column.roll(step, 1).clamp(max=0.0), column)})
    if fault == "recomputed":
        if strength == "by engine":
            engine = torch.arange(batch.batch_size)[:, None].expand(batch.mask.shape) % 2
            trainer = batch.logp_target if batch.logp_proximal is None else batch.logp_proximal
            return batch.replaced(logp_behavior=trainer, engine=engine, version=None)
        return batch.replaced(logp_behavior=batch.logp_target, engine=None)
    narrow = torch.bfloat16 if strength == "bfloat16" else torch.float16
    return batch.replaced(logp_behavior=batch.logp_behavior.to(narrow).float())


def _tagged(batch: SegmentedBatch, strength: str, seeds: SeedTree) -> SegmentedBatch:
    """Tag the tokens wrongly; segments follow the tags, so that nothing else gives them away."""
    assert batch.version is not None
    if strength == "reversed":
        return batch.replaced(version=batch.version[batch.mask].max() - batch.version)
    order = seeds["shuffle"].numpy_generator().permutation(batch.batch_size)
    other = batch.version[torch.from_numpy(order)]  # another response's tags; padding of a short one is filled up
    filled = np.maximum.accumulate(other.numpy(), axis=1)
    return batch.replaced(
        version=torch.from_numpy(filled), segment=torch.from_numpy((filled > filled[:, :1]).astype(np.int64))
    )
