"""Mistakes of recording that a batch gives away, each a check that says what it saw, and properties worth a warning.

A *fault* means that some recorded number is not what its name says, so that no weight computed from it can be right. A
*note* is a property of honest data that changes which correction is usable. Faults with a name of their own, and with their
power measured, are in `detectors`. A check for which the batch lacks a column, or responses or tokens enough, has not passed:
it did not run, and the record says why.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from testbed.core.batch import BatchFacts, SegmentedBatch
from testbed.diagnosis.detectors.rates import measured_rates
from testbed.diagnosis.detectors.registry import findings
from testbed.diagnosis.gaps import segments_and_all
from testbed.diagnosis.products import FEWEST_PRODUCTS
from testbed.diagnosis.response_means import FEWEST
from testbed.diagnosis.unit_mean import divergence_scores, negative_divergences
from testbed.weighting.granularity import log_ratios

FAR = 1.0  # nats of a response's log product: a factor e
HEAVY_TAIL = 0.7  # Pareto k above which the largest weights decide every average
NOT_CERTAIN = -0.1  # nats: a token the target finds likelier than this may well have behavior log-prob 0


def fault_records(
    batch: SegmentedBatch, facts: BatchFacts, products: list[dict[str, Any]], unit_means: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Make every check.

    Parameters
    ----------
    facts : BatchFacts           of the batch as it was recorded
    products : list              of `product_records`; empty: the tail is not looked at
    unit_means : list            of `unit_mean_records`, or `unit_mean_scores` where no interval is wanted

    Returns
    -------
    list of dict   check, kind ("fault" or "note"), fired (bool), says (a sentence; "" unless fired), ran (bool), why (it did
                   not run: what is missing; "" if it did), rates (of a detector: `measured_rates`, else None); a shift that
                   fired comes first

    Gives      all faults together on healthy dumps: see `detectors.registry.BUDGET`, measured in `detectors/power.json`
    """
    named = {found["check"]: found for found in findings(batch)}
    lacking = {name: found["why"] for name, found in named.items()} | _lacking(batch, products, unit_means)
    cut_off = named["truncated_mass"]["fired"]
    if cut_off:
        lacking["filled_with_zero"] = "`truncated_mass` explains tokens of log-prob 0"
    checks = [
        ("zero_variance", "fault", _zero_variance(batch)),
        ("unit_mean", "fault", _unit_mean(unit_means)),
        ("negative_divergence", "fault", _negative(negative_divergences(batch))),
        ("label_mixture", "fault", _mixed_labels(batch)),
        ("filled_with_zero", "fault", "" if cut_off else _filled(batch)),
        *((name, found["kind"], found["says"]) for name, found in named.items() if found["kind"] == "fault"),
        ("support_mismatch", "note", _support(facts)),
        ("clipped", "note", _clipped(facts)),
        *((name, found["kind"], found["says"]) for name, found in named.items() if found["kind"] == "note"),
        ("large_products", "note", _large_products(batch)),
        ("heavy_tail", "note", _tail(products)),
        ("single_groups", "note", _single_groups(batch)),
    ]
    # a shift also moves means and divergences: where it is seen, it explains the others and is said first
    checks.sort(key=lambda check: not (check[0] == "shift_by_one" and check[2]))
    records = []
    for name, kind, says in checks:
        why = "" if says else lacking.get(name, "")  # what fires on little has run, whatever it lacked
        told = {"fired": bool(says), "says": says, "ran": not why, "why": why}
        records.append({"check": name, "kind": kind, **told, "rates": measured_rates(name, kind)})
    return records


def _lacking(batch: SegmentedBatch, products: list[dict[str, Any]], unit_means: list[dict[str, Any]]) -> dict[str, str]:
    """Say of each check that is no detector what it lacks to be made; "" if nothing."""
    parts = [selected for label, selected in segments_and_all(batch) if label is not None]
    tokens, responses = (max(int(count) for count in counts) for counts in (
        [part.sum() for part in parts], [part.any(1).sum() for part in parts]
    ))  # fmt: skip
    few = f"{responses} of {FEWEST} responses" if responses < FEWEST else "no segment has a finite mean"
    tested = any(record["score"] is not None for record in unit_means)
    divergent = any(record["score"] is not None for record in divergence_scores(batch))
    return {
        "zero_variance": "" if tokens > 1 or batch.logp_proximal is not None else "no segment has two tokens",
        "unit_mean": "" if tested else few,
        "negative_divergence": "" if divergent else few,
        "label_mixture": _unlabeled(batch, tokens),
        "heavy_tail": _no_tail(products),
        "single_groups": "one response" if batch.batch_size < 2 else "",
    }


def _unlabeled(batch: SegmentedBatch, tokens: int) -> str:
    """Engines are compared within a segment, versions within a response."""
    if batch.version is None and batch.engine is None:
        return "no column `version` or `engine`"
    comparable = (batch.engine is not None and tokens > 1) or (
        batch.version is not None and int(batch.lengths.max()) > 1
    )
    return "" if comparable else "no two tokens to compare"


def _no_tail(products: list[dict[str, Any]]) -> str:
    most = max((product["n"] for product in products), default=0)
    return "" if most >= FEWEST_PRODUCTS else f"{most} of {FEWEST_PRODUCTS} responses"


def _zero_variance(batch: SegmentedBatch) -> str:
    """Recomputed log-probs: the ratio cannot be one constant unless nothing changed at all."""
    found = []
    ratio = log_ratios(batch)
    for label, selected in segments_and_all(batch):
        values = ratio[selected]
        if label is not None and len(values) > 1 and bool((values == values[0]).all()):
            found.append(f"segment {label} ({len(values)} tokens, all {float(values[0]):.3g} nats)")
    if batch.logp_proximal is not None and not found:
        copied = (batch.logp_proximal == batch.logp_behavior) | ~batch.mask
        if bool(copied.all()):
            return (
                "`logp_proximal` equals `logp_behavior` everywhere: one was copied from the other, mismatch is hidden"
            )
    if not found:
        return ""
    return (
        "the ratio target/behavior has zero variance in "
        + ", ".join(found)
        + ": at 0 nats either nothing lies between "
        "the two, no update and no other arithmetic, or the behavior's log-probs were recomputed with the target's weights; "
        "at another value the two are no policies that differ by training"
    )


def _unit_mean(records: list[dict[str, Any]]) -> str:
    bad = [r for r in records if r["alarm"]]
    if not bad:
        return ""
    low = any(r["mean"] < 1 for r in bad)
    seen = "; ".join(f"{r['ratio']} in segment {r['segment']} has mean {r['mean']:.4f}{_beyond(r)}" for r in bad)
    return (
        f"E[w] = 1 is rejected ({seen}): the recorded behavior is not the policy that drew these tokens. Look for a wrong "
        "weight version, a stale cache, log-probs before temperature or top-p, exchanged columns"
        + ("; a mean below 1 also comes from a sampler that cannot draw all the target can" if low else "")
    )


def _beyond(record: dict[str, Any]) -> str:
    score = record["score"]
    return f", {score:+.1f} standard errors from 1" if score is not None and math.isfinite(score) else ""


def _negative(records: list[dict[str, Any]]) -> str:
    if not records:
        return ""
    seen = "; ".join(f"{r['direction']} in segment {r['segment']}: {r['kl_k1']:.3g} nats per token" for r in records)
    return (
        f"a divergence estimate is below 0 beyond noise ({seen}): the columns of target and behavior may be exchanged"
    )


def _mixed_labels(batch: SegmentedBatch) -> str:
    found = []
    for name in ("version", "engine"):
        recorded = getattr(batch, name)
        if recorded is None:
            continue
        for label, selected in segments_and_all(batch):
            kinds = recorded[selected].unique()
            if label is not None and name == "engine" and len(kinds) > 1:
                found.append(f"segment {label} has tokens of {len(kinds)} engines or behaviors")
        step = (
            batch.mask[:, 1:] & (recorded[:, 1:] != recorded[:, :-1]) & (batch.segment[:, 1:] == batch.segment[:, :-1])
        )
        if name == "version" and bool(step.any()):
            found.append(f"the version changes inside a segment of {int(step.any(1).sum())} responses")
    if not found:
        return ""
    return "segment labels do not separate behaviors: " + "; ".join(found)


def _filled(batch: SegmentedBatch) -> str:
    count = int((batch.mask & (batch.logp_behavior == 0) & (batch.logp_target < NOT_CERTAIN)).sum())
    if not count:
        return ""
    return (
        f"tokens with behavior log-prob exactly 0 that the target finds uncertain: {count}; missing values may have been "
        "filled with 0"
    )


def _support(facts: BatchFacts) -> str:
    count = facts.support_mismatches
    if not count:
        return ""
    return (
        f"drawn tokens with probability 0 under the target: {count}; their weight is 0, and so is any product with them"
    )


def _clipped(facts: BatchFacts) -> str:
    counts = ", ".join(f"{count} of `{name}`" for name, count in facts.clipped.items())
    return f"log-probs just above 0 were set to 0: {counts}" * bool(counts)


def _large_products(batch: SegmentedBatch) -> str:
    """Large products of small gaps are made by the length; others by a few tokens."""
    ratio = log_ratios(batch).double()
    possible = batch.mask & ~torch.isneginf(ratio)
    total = torch.where(possible, ratio, 0.0).sum(1).abs()
    far = total > FAR
    if not bool(far.any()):
        return ""
    largest = torch.where(possible, ratio.abs(), 0.0).amax(1)
    part = float((largest[far] / total[far]).median())
    gap = float((total[far] / batch.lengths[far]).median().expm1())
    many = f"{int(far.sum())} of {batch.batch_size} response products are beyond a factor e from 1, "
    if part < 0.5:
        return (
            many + f"driven by length, per-token gap {100 * gap:.2g}%: no single token makes up half of a typical one"
        )
    return many + f"driven by single tokens: the largest one makes up {min(part, 1):.0%} of a typical one"


def _single_groups(batch: SegmentedBatch) -> str:
    if batch.batch_size < 2 or len(batch.group.unique()) < batch.batch_size:
        return ""
    return (
        "each response is its own group (no group was recorded, or no two agree): group statistics cannot be computed, and "
        "advantages are taken against the mean of the batch"
    )


def _tail(products: list[dict[str, Any]]) -> str:
    heavy = [p for p in products if p["n"] >= FEWEST_PRODUCTS and p["raw"]["pareto_k"] > HEAVY_TAIL]
    if not heavy:
        return ""
    seen = ", ".join(f"{p['raw']['pareto_k']:.2f} through segment {p['through_segment']}" for p in heavy)
    return (
        f"Pareto k of the products, the exponent fitted to their largest weights (moments of order 1/k and beyond are "
        f"infinite), is above {HEAVY_TAIL} ({seen}): sample means and second moments are not to be trusted"
    )
