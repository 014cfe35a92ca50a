"""Rules in which the sign of the advantage chooses a window, a taper or a veto."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes

ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)


def surrogate(ratio, advantage, low, high):
    """PPO's min(r A, clip(r) A) with the window [low, high], by comparing its branches."""
    value = min(ratio * advantage, min(max(ratio, low), high) * advantage)
    cut = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
    return Outcome(ZERO if cut else ratio, not cut, value)


SEEN = {}  # the window of a batch is the same for all its tokens


def tau_of(rows, budget):
    """Root of sum min(l^2, tau^2) = budget * n over harmful tokens, by bisection on tau^2."""
    key = (id(rows), budget)
    if key not in SEEN:
        squares = [
            log_ratio**2
            for row in rows
            for log_ratio, a in zip(row.log_ratios, row.advantage, strict=True)
            if (a > 0 and log_ratio > 0) or (a < 0 and log_ratio < 0)
        ]
        if mpmath.fsum(squares) <= budget * len(squares):
            root = mpmath.inf
        else:
            low, high = ZERO, max(squares)
            for _ in range(120):
                middle = (low + high) / 2
                over = mpmath.fsum(min(x, middle) for x in squares) > budget * len(squares)
                low, high = (low, middle) if over else (middle, high)
            root = mpmath.sqrt(low)
        SEEN[key] = rows, root
    return SEEN[key][1]


@transcribes("m2po", budget=0.04, eps_low=0.3, eps_high=0.5, tau="auto")
def m2po(x, budget, eps_low, eps_high, tau):
    tau = tau_of(x.rows, budget) if tau == "auto" else tau
    return surrogate(
        x.w, x.advantage, min(mpmath.exp(-tau), max(ZERO, 1 - eps_low)), max(mpmath.exp(tau), 1 + eps_high)
    )


@transcribes("mu_grpo", trigger_low=0.0, trigger_high=2.0, eps_low=0.5, eps_high=1.0)
def mu_grpo(x, trigger_low, trigger_high, eps_low, eps_high):
    if x.advantage < 0 and any(not trigger_low <= rho <= trigger_high for rho in x.row.ratios[: x.t]):
        return Outcome(ZERO, False, ZERO)
    return surrogate(x.w, x.advantage, max(ZERO, 1 - eps_low), 1 + eps_high)


@transcribes("topr", cap=1.0)
def topr(x, cap):
    return Outcome(ONE if x.advantage >= 0 else min(max(x.w, ZERO), cap))


@transcribes("vespo", k_pos=2.0, lam_pos=3.0, k_neg=3.0, lam_neg=2.0)
def vespo(x, k_pos, lam_pos, k_neg, lam_neg):
    k, lam = (k_pos, lam_pos) if x.advantage >= 0 else (k_neg, lam_neg)
    if lam * x.w > 1e6:  # far below the smallest float
        return Outcome(ZERO)
    return Outcome(mpmath.exp(lam) * x.w**k * mpmath.exp(-lam * x.w))
