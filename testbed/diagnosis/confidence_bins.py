"""Log-odds displacement by how sure the trainer is; engine noise has nearly one scale (CIS paper: a factor 1.52 over these bins).

    eps = logit p - logit q,   log k = log p - log q,   p the trainer's and q the sampler's probability of the drawn token

Per bin of p: the median, MAD and outer quantiles of eps and the MAD of log k. To first order log k = (1-p) eps, so that
MAD(log k) / MAD(eps) lies between the bin's least and largest 1-p (C3): where it does not, displacements are too large for
first order, and are no engine noise. eps is not finite where exactly one of the probabilities is 0 or rounded to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_draws import percentile_interval, response_draws
from testbed.diagnosis.response_means import FEWEST
from testbed.weighting.confidence import displacement

EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)  # of p; the ranges of the CIS paper's Table 7
NAMES = ("p < 0.5", "0.5 - 0.9", "0.9 - 0.99", "0.99 - 0.999", "p > 0.999")
LEAST_TOKENS = 30  # of a bin, to be described
ENTRIES, LEAST_DRAWS, MOST_DRAWS = 2_000_000, 100, 200  # tokens in all draws together; draws
STATISTICS = ("median", "q05", "q95", "mad_eps", "mad_log_k", "mad_ratio")


def confidence_records(batch: SegmentedBatch, seeds: SeedTree) -> list[dict[str, Any]]:
    """Describe eps by confidence, for the mismatch where the proximal policy was recorded, and for the total.

    Returns
    -------
    list of dict   gap ("mismatch" or "total"), bin, low, high (of p), tokens, finite (share), and with at least 30 finite
                   tokens: median, q05, q95, mad_eps, mad_log_k (nats), mad_ratio = mad_log_k / mad_eps, as_expected
                   (mad_ratio within [1 - high, 1 - low]), intervals (statistic -> bootstrap over responses, None with
                   fewer than 20)
    """
    pairs = [("mismatch", batch.logp_proximal)] if batch.logp_proximal is not None else []
    records = []
    for gap, trainer in [*pairs, ("total", batch.logp_target)]:
        logp = trainer[batch.mask].double()
        behavior = batch.logp_behavior[batch.mask].double()
        eps, log_k = displacement(logp, behavior).numpy(), (logp - behavior).numpy()
        owner = np.repeat(np.arange(batch.batch_size), batch.lengths.numpy())
        bins = np.searchsorted(np.array(EDGES[1:-1]), logp.exp().numpy(), side="right")
        for number, name in enumerate(NAMES):
            inside = bins == number
            stream = seeds[gap][name]
            record = {"gap": gap, "bin": name, "low": EDGES[number], "high": EDGES[number + 1]}
            records.append(record | _bin(eps[inside], log_k[inside], owner[inside], batch.batch_size, number, stream))
    return records


def _bin(
    eps: Float[np.ndarray, " n"],
    log_k: Float[np.ndarray, " n"],
    owner: Int[np.ndarray, " n"],
    responses: int,
    number: int,
    seeds: SeedTree,
) -> dict[str, Any]:
    finite = np.isfinite(eps)
    record: dict[str, Any] = {"tokens": len(eps), "finite": float(finite.mean()) if len(eps) else None}
    if finite.sum() < LEAST_TOKENS:
        return record
    eps, log_k, owner = eps[finite], log_k[finite], owner[finite]
    found = _statistics(eps, log_k)
    ratio = found["mad_ratio"]
    record |= found | {"as_expected": bool(1 - EDGES[number + 1] <= ratio <= 1 - EDGES[number])}
    if len(np.unique(owner)) < FEWEST:
        return record | {"intervals": None}
    draws: dict[str, list[float]] = {name: [] for name in STATISTICS}
    resamples = min(max(ENTRIES // (len(eps) * len(NAMES)), LEAST_DRAWS), MOST_DRAWS)
    for counts in response_draws(responses, seeds, resamples):
        index = np.repeat(np.arange(len(eps)), counts[owner])
        if len(index):
            for name, value in _statistics(eps[index], log_k[index]).items():
                draws[name].append(value)
    return record | {"intervals": {name: percentile_interval(values) for name, values in draws.items()}}


def _statistics(eps: Float[np.ndarray, " n"], log_k: Float[np.ndarray, " n"]) -> dict[str, float]:
    q05, median, q95 = np.quantile(eps, [0.05, 0.5, 0.95]).tolist()
    mad_eps = float(np.median(np.abs(eps - median)))
    mad_log_k = float(np.median(np.abs(log_k - np.median(log_k))))
    ratio = mad_log_k / mad_eps if mad_eps > 0 else float("nan")
    return dict(zip(STATISTICS, (median, q05, q95, mad_eps, mad_log_k, ratio), strict=True))
