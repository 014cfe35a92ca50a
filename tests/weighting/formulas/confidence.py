"""Rules that look at the token's own probability: p is the target's (the trainer's), q the behavior's (the sampler's)."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes

ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)
SUREST = 1 - mpmath.mpf(1e-8)  # a probability recorded as 1 is known to this only


def log_odds_shift(log_p, log_q):
    """Displacement eps = logit p - logit q, both strictly between 0 and 1."""
    p, q = mpmath.exp(log_p), mpmath.exp(log_q)
    return mpmath.log(p / (1 - p)) - mpmath.log(q / (1 - q))


@transcribes("cis", lam=2.3, floor=5e-3, cap_form="odds", low=0)
def cis(x, lam, floor, cap_form, low):
    phi = max(1 - x.p, floor)
    cap = {"odds": 1 + phi * (mpmath.exp(lam) - 1), "linear": 1 + lam * phi, "loglinear": mpmath.exp(lam * phi)}[
        cap_form
    ]
    capped = min(x.rho, cap)
    return Outcome(max(capped, x.p + (1 - x.p) * low) if low > 0 and x.p > 0 else capped)


def coin_divergence(a, b):
    a, b = min(a, SUREST), min(b, SUREST)
    return a * mpmath.log(a / b) + (1 - a) * mpmath.log((1 - a) / (1 - b))


@transcribes("kpop", phi=2.0)
def kpop(x, phi):
    kept = coin_divergence(x.p, x.q) <= phi and coin_divergence(x.q, x.p) <= phi
    return Outcome(x.rho if kept else ZERO, kept)


@transcribes("dppo_tv", eps_low=0.2, eps_high=0.2, cap=3.0)
def dppo_tv(x, eps_low, eps_high, cap):
    change = x.p - x.q
    kept = not (x.advantage > 0 and change > eps_high) and not (x.advantage < 0 and change < -eps_low)
    return Outcome(min(x.rho, cap) if kept else ZERO, kept)


@transcribes("dppo_kl", eps_low=0.05, eps_high=0.05, cap=3.0)
def dppo_kl(x, eps_low, eps_high, cap):
    size = coin_divergence(x.q, x.p)
    kept = not (x.advantage > 0 and x.p > x.q and size > eps_high)
    kept = kept and not (x.advantage < 0 and x.p < x.q and size > eps_low)
    return Outcome(min(x.rho, cap) if kept else ZERO, kept)
