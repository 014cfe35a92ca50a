"""`diagnose`: everything the diagnosis knows about a batch, as one record of plain numbers. It prints nothing."""

from __future__ import annotations

from typing import Any

from testbed.core.batch import BatchFacts, SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.diagnosis.advice import advice_records
from testbed.diagnosis.advised_share import COST_FRESH, COST_REPLAY
from testbed.diagnosis.confidence_bins import confidence_records
from testbed.diagnosis.faults import fault_records
from testbed.diagnosis.gaps import gap_records, segments_and_all
from testbed.diagnosis.products import product_records
from testbed.diagnosis.readings import applicable_readings
from testbed.diagnosis.rule_effects import rule_records
from testbed.diagnosis.unit_mean import unit_mean_records


def diagnose(
    batch: SegmentedBatch, *, seed: int = 0, cost_fresh: float = COST_FRESH, cost_replay: float = COST_REPLAY
) -> dict[str, Any]:
    """Describe a batch: gaps between policies, weights of segments, faults, what each rule would do, what to set.

    Parameters
    ----------
    batch : SegmentedBatch   responses without tokens are left out of everything
    seed : int               of the bootstrap; nothing else is random
    cost_fresh, cost_replay : float   of one response, for the advised replay share

    Returns
    -------
    dict   batch, gaps, displacements, products, unit_means, faults, rules, advice, readings; see the module of each

    Raises
    ------
    InputError   no real token; a cost out of range
    Assumes      responses are independent, up to the prompts they share
    Gives        estimates with intervals; each says by which method, and which ones hold only for many responses

    Examples
    --------
    >>> from testbed.diagnosis.dump import load_dump
    >>> from testbed.sample_data import partial_rollouts_path
    >>> record = diagnose(load_dump(partial_rollouts_path()))
    >>> record["batch"]["tokens"], [gap["segment"] for gap in record["gaps"] if gap["gap"] == "drift"]
    (4224, [0, 1, None])
    """
    if batch.n_tokens == 0:
        raise InputError("a diagnosis needs at least one token", found="an empty batch")
    facts = batch.facts  # of the batch as it was recorded: what was repaired then is not seen again
    batch = batch.select(batch.mask.any(1))  # a row without tokens would count as a weight of 1
    seeds = SeedTree(seed)["diagnosis"]
    gaps = gap_records(batch, seeds["gaps"])
    products = product_records(batch, seeds["products"])
    unit_means = unit_mean_records(batch, seeds["unit_mean"])
    return {
        "batch": _facts(batch, facts),
        "gaps": gaps,
        "displacements": confidence_records(batch, seeds["displacements"]),
        "products": products,
        "unit_means": unit_means,
        "faults": fault_records(batch, facts, products, unit_means),
        "rules": rule_records(batch, seeds["rules"]),
        "advice": advice_records(batch, seeds["advice"], cost_fresh, cost_replay),
        "readings": applicable_readings(batch),
    }


def _facts(batch: SegmentedBatch, facts: BatchFacts) -> dict[str, Any]:
    parts = [(label, selected) for label, selected in segments_and_all(batch) if label is not None]
    if batch.engine is not None:
        behaviors = len(batch.engine[batch.mask].unique())
    elif batch.version is not None:
        behaviors = len(batch.version[batch.mask].unique())
    else:
        behaviors = len(parts)
    return {
        "responses": batch.batch_size,
        "groups": len(batch.group.unique()),
        "tokens": batch.n_tokens,
        "longest": int(batch.lengths.max()),
        "behaviors": behaviors,
        "mean_reward": float(batch.reward.double().mean()),
        "segments": [
            {"segment": label, "responses": int(selected.any(1).sum()), "tokens": int(selected.sum())}
            for label, selected in parts
        ],
        "clipped": dict(facts.clipped),
        "low_precision": dict(facts.low_precision),
        "support_mismatches": facts.support_mismatches,
    }
