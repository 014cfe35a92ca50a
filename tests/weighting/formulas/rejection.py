"""Gates on estimates of a divergence, at one token and over a response."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes

ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)


def gated(x, kept, weight):
    return Outcome((x.rho if weight == "ratio" else ONE) if kept else ZERO, bool(kept))


def aggregated(values, how):
    values = list(values)
    total = max(values) if how == "max" else mpmath.fsum(values)
    return total / len(values) if how == "mean" else total


def k2(log_rho):
    return log_rho**2 / 2


def k3(log_rho):
    return mpmath.exp(log_rho) - 1 - log_rho


@transcribes("k1_token", low=0.5, high=5.0, weight="one")
def k1_token(x, low, high, weight):
    return gated(x, low <= x.rho <= high, weight)


@transcribes("k2_token", threshold=0.25, weight="one")
def k2_token(x, threshold, weight):
    return gated(x, k2(x.log_rho) <= threshold, weight)


@transcribes("k3_token", threshold=0.25, weight="one")
def k3_token(x, threshold, weight):
    return gated(x, k3(x.log_rho) <= threshold, weight)


@transcribes("k1_sequence", low=0.999, high=1.001, aggregate="mean", weight="one")
def k1_sequence(x, low, high, aggregate, weight):
    return gated(x, low <= mpmath.exp(aggregated(x.row.log_ratios, aggregate)) <= high, weight)


@transcribes("k2_sequence", threshold=0.01, aggregate="mean", weight="one")
def k2_sequence(x, threshold, aggregate, weight):
    return gated(x, aggregated(map(k2, x.row.log_ratios), aggregate) <= threshold, weight)


@transcribes("k3_sequence", threshold=0.01, aggregate="mean", weight="one")
def k3_sequence(x, threshold, aggregate, weight):
    return gated(x, aggregated(map(k3, x.row.log_ratios), aggregate) <= threshold, weight)


@transcribes("veto", threshold=1e-4, weight="one")
def veto(x, threshold, weight):
    return gated(x, not any(rho < threshold for rho in x.row.ratios), weight)


@transcribes("opsm", delta=1e-4, weight="one")
def opsm(x, delta, weight):
    old_minus_new = [q - p for p, q in zip(x.row.target, x.row.behavior, strict=True)]
    masked = x.advantage < 0 and mpmath.fsum(old_minus_new) / x.length > delta
    return gated(x, not masked, weight)
