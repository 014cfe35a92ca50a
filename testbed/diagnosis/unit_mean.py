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
from testbed.diagnosis.response_means import log_e_value, token_mean_interval
from testbed.weighting.granularity import log_ratios

FALSE_ALARM = 0.01  # for all tests of one report together
FINE = 5000  # draws of the bootstrap: its outermost quantiles are read


def unit_mean_records(batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """Test the mean token ratio of target, and of proximal where recorded, to behavior, for each segment.

    Returns
    -------
    list of dict   ratio, segment, tokens, mean, level, interval (bootstrap over responses; its level is such that all of
                   them together contain 1 with probability 0.99 on healthy data with many responses; None with fewer
                   than 20), log10_e_value
                   (valid at every n, for means above 1 only), excludes_1 ("", "bootstrap", "e-value" or "both")

    Gives      E[sum_t (rho_t - 1)] = 0 over a response of any length (S1)
    Numerics   false alarms of the bootstrap on simulated healthy batches, 120 each: at most 2 % from 64 responses on, up
               to 5 % with 20
    """
    numerators = ["target"] + (["proximal"] if batch.logp_proximal is not None else [])
    segments = [(label, selected) for label, selected in segments_and_all(batch) if label is not None]
    alpha = FALSE_ALARM / (len(numerators) * len(segments))
    records = []
    for numerator in numerators:
        log_ratio = log_ratios(batch, numerator=numerator).double()
        for label, selected in segments:
            ratio, _ = safe_exp(log_ratio, selected)
            interval = token_mean_interval(
                ratio, selected, seeds[numerator][str(label)], level=1 - alpha, resamples=FINE
            )
            log_e = log_e_value(log_ratio, selected)
            by = [
                *(["bootstrap"] if interval and not interval["low"] <= 1 <= interval["high"] else []),
                *(["e-value"] if log_e >= -math.log(alpha) else []),
            ]
            records.append(
                {
                    "ratio": f"{numerator} / behavior",
                    "segment": label,
                    "tokens": int(selected.sum()),
                    "mean": float(ratio[selected].mean()),
                    "level": 1 - alpha,
                    "interval": interval,
                    "log10_e_value": log_e / math.log(10),
                    "excludes_1": "both" if len(by) == 2 else "".join(by),
                }
            )
    return records


def negative_divergences(gaps: list[dict[str, Any]], batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """Records of gaps from the behavior whose k1 estimate is below 0 beyond noise, which no divergence can be.

    The mean of log behavior - log other, over tokens the behavior drew, estimates KL(behavior || other) >= 0.
    """
    tested = [gap for gap in gaps if GAPS[gap["gap"]][1] == "behavior" and gap["segment"] is not None]
    level = 1 - FALSE_ALARM / max(len(tested), 1)
    found = []
    for gap in tested:
        numerator, denominator, _ = GAPS[gap["gap"]]
        k1 = -log_ratios(batch, numerator=numerator, denominator=denominator).double()
        selected = batch.mask & (batch.segment == gap["segment"])
        interval = token_mean_interval(
            k1, selected, seeds[gap["gap"]][str(gap["segment"])], level=level, resamples=FINE
        )
        if interval is not None and interval["high"] < 0:
            found.append(gap | {"kl_k1_interval": interval})
    return found
