"""The weights of whole segments: statistics of W_(k), the product of ratios from the first token through segment k.

E[W_(k)] = 1 and E[W_(k)^2] grows by a factor per segment (S1, S9, S12), which decides what a full correction costs. All
of these are estimates from the sample: with a heavy tail the sample misses the rare large weights, its mean and second
moment are then too small and a bootstrap interval too short. Pareto k says how heavy the tail is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_means import response_mean_interval
from testbed.stats.intervals import empirical_bernstein_interval
from testbed.stats.log_weights import ess_from_log, renyi2_from_log
from testbed.stats.pareto_tail import pareto_k_from_log
from testbed.stats.weight_statistics import chi2, ess, mean_weight, second_moment
from testbed.weighting.segment_ends import segment_end_log_ratios
from testbed.weighting.truncate import truncate

FEWEST_PRODUCTS = 25  # responses; of fewer the tail has no five largest weights to fit
CAP = 2.0  # for the capped statistics: the commonest cap of truncated importance sampling


def product_records(batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """One record per segment k with tokens: statistics over responses of W_(k).

    A response that ends before segment k keeps the product it ended with, so that the mean stays 1.

    Returns
    -------
    list of dict   through_segment, estimate ("sample"), n, raw {mean, mean_interval, second_moment,
                   second_moment_interval, chi2, renyi2, ess, pareto_k, largest, median}, applied {cap, mean,
                   mean_interval, second_moment, ess}; intervals name their method, None where a weight overflows
    """
    labels, rank = batch.segment[batch.mask].unique(return_inverse=True)
    dense = torch.full_like(batch.segment, -1)
    dense[batch.mask] = rank
    log_w = segment_end_log_ratios(batch.replaced(segment=dense)).double()
    return [_product(int(k), log_w[:, i], seeds[str(int(k))]) for i, k in enumerate(labels)]


def _product(segment: int, log_w: Float[Tensor, " B"], seeds: SeedTree) -> dict[str, Any]:
    w = log_w.exp()
    capped = truncate(log_w[None], CAP)[0]
    raw = {
        "mean": float(mean_weight(w)),
        "mean_interval": response_mean_interval(w, seeds["mean"]),
        "second_moment": float(second_moment(w)),
        "second_moment_interval": response_mean_interval(w.square(), seeds["second"]),
        "chi2": float(chi2(w)),
        "renyi2": float(renyi2_from_log(log_w)),
        "ess": float(ess_from_log(log_w)),
        "pareto_k": float(pareto_k_from_log(log_w)),
        "largest": float(w.max()),
        "median": float(log_w.median().exp()),
    }
    bound = asdict(empirical_bernstein_interval(capped, low=0.0, high=CAP))
    applied = {
        "cap": CAP,
        "mean": float(mean_weight(capped, which="applied")),
        "mean_interval": bound | {"method": "empirical Bernstein, valid at every n"},
        "second_moment": float(second_moment(capped, which="applied")),
        "ess": float(ess(capped, which="applied")),
    }
    return {"through_segment": segment, "estimate": "sample", "n": len(log_w), "raw": raw, "applied": applied}
