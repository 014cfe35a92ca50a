"""Rules that test a token against its alternatives, and the mixture of no correction with the whole one."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes

ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)


def passes(chooser, probability):
    """Whether a chooser that always wants one answer accepts: it cannot have an answer of probability 0."""
    return probability > 0 if chooser.index == 1 else probability == 1


@transcribes("sis", top_k=10, bound=None, completion=False, chooser=None)
def sis(x, top_k, bound, completion, chooser):
    tested = True
    if bound is None:
        possible = [slot for slot in x.head if slot.log_q > -mpmath.inf]
        last = sorted((slot.log_q for slot in x.head), reverse=True)[: int(top_k)][-1]
        head = [slot for slot in possible if slot.log_q >= last]
        bound = max([ONE, *(mpmath.exp(slot.log_p - slot.log_q) for slot in head)])
        tested = any(slot.drawn for slot in head)
    if not tested:
        return Outcome(x.w)
    a = min(ONE, x.w / bound)
    if chooser is not None:
        if passes(chooser, a):
            return Outcome(ONE)
        return Outcome((x.w - a) / (1 - a) if completion else x.w)
    if completion:
        return Outcome(ONE if a == 1 else a + (1 - a) * (x.w - a) / (1 - a))
    return Outcome(a + (1 - a) * x.w)


@transcribes("obrs", lam=1.0, cap=2.0, tail=1e-6, share=None, chooser=None)
def obrs(x, lam, cap, tail, share, chooser):
    kept = share
    if share is None:
        kept = mpmath.fsum(min(mpmath.exp(slot.log_q), mpmath.exp(slot.log_p) / lam) for slot in x.head)
        kept += min(x.rest_q, x.rest_p / lam)
    a = min(ONE, x.w / lam)
    weight = min(kept * max(lam, x.w), cap)
    if chooser is None:
        return Outcome(a * weight)
    accepted = passes(chooser, a)
    return Outcome(weight if accepted else ZERO, accepted)


def ratios_weighed(rows, granularity):
    """One ratio for each token, segment of a response, or response."""
    for row in rows:
        if granularity in ("token", "prefix"):
            where = range(len(row))
        elif granularity.startswith("segment"):
            where = [row.segment.index(label) for label in sorted(set(row.segment))]
        else:
            where = [0]
        for t in where:
            yield row.at(granularity, t)


SEEN = {}  # the coefficient of a batch is the same for all its tokens


def alpha_of(rows, granularity, kl_scale):
    key = (id(rows), granularity, kl_scale)
    if key not in SEEN:
        w = list(ratios_weighed(rows, granularity))
        n, total, squares = len(w), mpmath.fsum(w), mpmath.fsum(x * x for x in w)
        mean = total / n
        spread = mpmath.sqrt(mpmath.fsum((x - mean) ** 2 for x in w) / n) / mean
        divergence = mpmath.fsum(x - 1 - mpmath.log(x) for x in w) / n
        SEEN[key] = rows, total**2 / squares / n * (1 - mpmath.exp(-divergence / kl_scale)) / (1 + spread)
    return SEEN[key][1]


@transcribes("ais", alpha="auto", kl_scale=0.01)
def ais(x, alpha, kl_scale):
    share = alpha_of(x.rows, x.granularity, kl_scale) if alpha == "auto" else alpha
    return Outcome((1 - share) + share * x.w)
