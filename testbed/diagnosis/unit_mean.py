"""E[w] = 1: does the recorded behavior look like the policy that drew the tokens?

If it is, the ratio of *any* policy to it has conditional mean 1 at every token, so the mean over the tokens of a batch
has expectation 1 whatever the lengths. A declared version that is not the real one, a stale cache, sampler log-probs
taken before temperature, exchanged columns: all of them move that mean. Products over a response have mean 1 too, but
tails so heavy that their sample mean decides nothing; the test is therefore made on token ratios, with responses as
the independent units.
"""

from __future__ import annotations

import math
from typing import Any

from testbed.core.batch import SegmentedBatch
from testbed.core.numerics import safe_exp
from testbed.core.seeds import SeedTree
from testbed.diagnosis.gaps import GAPS, segments_and_all
from testbed.diagnosis.response_means import log_e_value, token_mean_interval, token_mean_score
from testbed.weighting.granularity import log_ratios

FALSE_ALARM = 0.01  # for all tests of one report together
FINE = 5000  # draws of the bootstrap: its outermost quantiles are read
# what the check of this name asks for, far beyond the level of the table
ALARM_SCORE, ALARM_E_VALUE = 6.0, 1e5  # standard errors; per test
LEAST_EFFECT = 1e-5  # of a mean ratio, or nats: less is the rounding of recorded float32 log-probs


def unit_mean_records(batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """Test the mean token ratio of target, and of proximal where recorded, to behavior, for each segment.

    Returns
    -------
    list of dict   ratio, segment, tokens, mean, score, alarm (see `unit_mean_scores`), level, interval (bootstrap over
                   responses; its level is such that all of them together contain 1 with probability 0.99 on healthy
                   data with many responses; None with fewer than 20), log10_e_value (valid at every n, for means above
                   1 only), excludes_1 ("", "bootstrap", "e-value" or "both")

    Gives      E[sum_t (rho_t - 1)] = 0 over a response of any length (S1)
    Numerics   false alarms of the bootstrap on simulated healthy batches, 120 each: at most 2 % from 64 responses on, up
               to 5 % with 20
    """
    tests = unit_mean_scores(batch)
    alpha = FALSE_ALARM / len(tests)
    records = []
    for test in tests:
        ratio, selected = test.pop("values"), test.pop("selected")
        stream = seeds[test["ratio"].split()[0]][str(test["segment"])]
        interval = token_mean_interval(ratio, selected, stream, level=1 - alpha, resamples=FINE)
        by = [
            *(["bootstrap"] if interval and not interval["low"] <= 1 <= interval["high"] else []),
            *(["e-value"] if test["log10_e_value"] >= -math.log10(alpha) else []),
        ]
        excludes = "both" if len(by) == 2 else "".join(by)
        records.append(test | {"level": 1 - alpha, "interval": interval, "excludes_1": excludes})
    return records


def unit_mean_scores(batch: SegmentedBatch) -> list[dict[str, Any]]:
    """Make the same tests without intervals.

    Returns
    -------
    list of dict   ratio, segment, tokens, mean, score (standard errors from 1, None with fewer than 20 responses),
                   log10_e_value, alarm (score beyond 6 either way, or the e-value above 1e5 times the number of tests: what
                   makes the check of that name fire), values, selected
    """
    numerators = ["target"] + (["proximal"] if batch.logp_proximal is not None else [])
    segments = [(label, selected) for label, selected in segments_and_all(batch) if label is not None]
    records = []
    for numerator in numerators:
        log_ratio = log_ratios(batch, numerator=numerator).double()
        for label, selected in segments:
            ratio, _ = safe_exp(log_ratio, selected)
            score, log_e = token_mean_score(ratio, selected, 1.0), log_e_value(log_ratio, selected)
            mean = float(ratio[selected].mean())
            far = score is not None and abs(score) >= ALARM_SCORE and abs(mean - 1) >= LEAST_EFFECT
            records.append(
                {
                    "ratio": f"{numerator} / behavior",
                    "segment": label,
                    "tokens": int(selected.sum()),
                    "mean": mean,
                    "score": score,
                    "log10_e_value": log_e / math.log(10),
                    "alarm": far or log_e >= math.log(ALARM_E_VALUE * len(numerators) * len(segments)),
                    "values": ratio,
                    "selected": selected,
                }
            )
    return records


def negative_divergences(batch: SegmentedBatch) -> list[dict[str, Any]]:
    """Gaps from the behavior whose k1 estimate is below 0 beyond noise, which no divergence can be.

    The mean of log behavior - log other, over tokens the behavior drew, estimates KL(behavior || other) >= 0.

    Returns
    -------
    list of dict   gap, direction, segment, kl_k1 (nats per token), score (standard errors from 0, at most -6)
    """
    return [
        found
        for found in divergence_scores(batch)
        if found["score"] is not None and found["score"] <= -ALARM_SCORE and found["kl_k1"] <= -LEAST_EFFECT
    ]


def divergence_scores(batch: SegmentedBatch) -> list[dict[str, Any]]:
    """Score every such gap, whatever its sign.

    Returns
    -------
    list of dict   as `negative_divergences`; score is None with fewer than 20 responses, or a value not finite
    """
    records = []
    for name, (numerator, denominator, direction) in GAPS.items():
        if denominator != "behavior" or (numerator == "proximal" and batch.logp_proximal is None):
            continue
        k1 = -log_ratios(batch, numerator=numerator, denominator=denominator).double()
        for label, selected in segments_and_all(batch):
            if label is not None:
                told = {"kl_k1": float(k1[selected].mean()), "score": token_mean_score(k1, selected, 0.0)}
                records.append({"gap": name, "direction": direction, "segment": label, **told})
    return records
