"""Every rule's formula, transcribed with loops at 50 digits and sharing nothing with the library."""

from dataclasses import dataclass

import mpmath

mpmath.mp.dps = 50
INFINITY = mpmath.inf


@dataclass
class Row:
    """One response's real tokens: log-probs as exact numbers, segment labels, advantage."""

    target: list
    behavior: list
    proximal: list
    segment: list
    advantage: list

    def ratio(self, t):
        return mpmath.exp(mpmath.mpf(self.target[t]) - mpmath.mpf(self.behavior[t]))

    def mismatch(self, t):
        return mpmath.exp(mpmath.mpf(self.proximal[t]) - mpmath.mpf(self.behavior[t]))

    def drift(self, t):
        return mpmath.exp(mpmath.mpf(self.target[t]) - mpmath.mpf(self.proximal[t]))

    def at(self, granularity, t):
        n = len(self.target)
        if granularity == "token":
            return self.ratio(t)
        if granularity == "prefix":
            chosen = range(t + 1)
        elif granularity == "segment":
            chosen = [s for s in range(n) if self.segment[s] == self.segment[t]]
        elif granularity == "segment_prefix":
            chosen = [s for s in range(n) if self.segment[s] <= self.segment[t]]
        else:
            chosen = range(n)
        product = mpmath.mpf(1)
        for s in chosen:
            product *= self.ratio(s)
        return mpmath.root(product, n) if granularity == "sequence_geomean" else product


def rows_of(batch, advantage):
    """Yield (row index, positions of its real tokens, Row)."""
    for b in range(batch.batch_size):
        where = [t for t in range(batch.horizon) if bool(batch.mask[b, t])]
        columns = [
            [x[b, t].item() for t in where]
            for x in (batch.logp_target, batch.logp_behavior, batch.logp_proximal, batch.segment)
        ]
        yield b, where, Row(*columns, [float(advantage[b]) for _ in where])


def _surrogate(ratio, a, low, high, dual=INFINITY):
    """Return (value, kept, objective) of the clipped surrogate by comparing its two branches."""
    clipped = min(max(ratio, 1 - mpmath.mpf(low)), 1 + mpmath.mpf(high))
    objective = min(ratio * a, clipped * a)
    kept = not (a > 0 and ratio > 1 + mpmath.mpf(high)) and not (a < 0 and ratio < 1 - mpmath.mpf(low))
    if a < 0 and ratio > dual:
        objective, kept = dual * a, False
    return (ratio if kept else mpmath.mpf(0)), kept, objective


def expected(rule, granularity, row, t, p):
    """Return (value, kept, objective or None) of token t."""
    w = row.at(granularity, t)
    a = row.advantage[t]
    zero, one = mpmath.mpf(0), mpmath.mpf(1)
    if rule in ("none", "geo_mask"):
        kept = rule == "none" or p["low"] <= w <= p["high"]
        return (one if kept else zero), kept, None
    if rule in ("exact", "prefix", "segment", "segment_prefix", "sequence_product"):
        return w, True, None
    if rule in ("tis", "seq_tis"):
        return min(w, p["cap"]), True, None
    if rule in ("mis", "seq_mis", "icepop"):
        low, high = p.get("low", 0), p.get("high", p.get("cap"))
        return (w if low <= w <= high else zero), bool(low <= w <= high), None
    if rule == "band":
        return max(min(w, p["high"]), p["low"]), True, None
    if rule == "cispo":
        return max(min(w, 1 + p["eps_high"]), 1 - p["eps_low"]), True, None
    if rule in ("ppo_clip", "gspo", "dual_clip"):
        return _surrogate(w, a, p["eps_low"], p["eps_high"], p.get("dual", INFINITY))
    if rule == "decoupled_ppo":
        k = min(row.mismatch(t), p["cap"])
        value, kept, objective = _surrogate(row.drift(t), a, p["eps_low"], p["eps_high"])
        return k * value, kept, k * objective
    if rule == "minpro":
        return row.ratio(t) * min([row.ratio(s) for s in range(t)], default=one), True, None
    if rule == "pnpo":
        return mpmath.root(row.at("prefix", t), t + 1), True, None
    if rule == "vtrace":
        value = min(p["rho_cap"], row.ratio(t))
        for s in range(t):
            value *= p["lam"] * min(p["c_cap"], row.ratio(s))
        return value, True, None
    assert rule == "spire"
    cap = p["cap"]
    cap = INFINITY if cap == "none" else cap[row.segment[t]] if isinstance(cap, list) else cap
    return min(w, cap), True, None
