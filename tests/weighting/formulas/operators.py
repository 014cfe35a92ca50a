"""Granularities, caps, masks and clips: one ratio and what is done to it."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes

ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)


@transcribes("none")
def none(x):
    return Outcome(ONE)


@transcribes("exact", clamp=False)
def exact(x, clamp):
    return Outcome(min(max(x.w, mpmath.mpf(1e-6)), mpmath.mpf(1e6)) if clamp else x.w)


@transcribes("prefix")
@transcribes("segment")
@transcribes("segment_prefix")
@transcribes("sequence_product")
def as_it_is(x):
    return Outcome(x.w)


@transcribes("tis", cap=2.0)
@transcribes("seq_tis", cap=2.0)
def truncated(x, cap):
    return Outcome(min(x.w, cap))


def _inside(x, low, high, weight):
    kept = low <= x.w <= high
    return Outcome(weight if kept else ZERO, kept)


@transcribes("icepop", low=0.5, high=5.0)
def icepop(x, low, high):
    return _inside(x, low, high, x.w)


@transcribes("mis", cap=3.0)
def mis(x, cap):
    return _inside(x, ZERO, cap, x.w)


@transcribes("seq_mis", low=0.0, cap=3.0)
def seq_mis(x, low, cap):
    return _inside(x, low, cap, x.w)


@transcribes("geo_mask", low=0.999, high=1.001)
def geo_mask(x, low, high):
    return _inside(x, low, high, ONE)


@transcribes("band", low=0.5, high=5.0)
def band(x, low, high):
    return Outcome(max(min(x.w, high), low))


@transcribes("cispo", eps_low=1.0, eps_high=4.0)
def cispo(x, eps_low, eps_high):
    return Outcome(max(min(x.w, 1 + eps_high), 1 - eps_low))


def _surrogate(ratio, advantage, eps_low, eps_high, dual=mpmath.inf):
    """PPO's min(r A, clip(r) A) by comparing its branches; for A < 0 not below dual * A."""
    clipped = min(max(ratio, 1 - eps_low), 1 + eps_high)
    objective = min(ratio * advantage, clipped * advantage)
    cut = (advantage > 0 and ratio > 1 + eps_high) or (advantage < 0 and ratio < 1 - eps_low)
    if advantage < 0 and ratio > dual:
        objective, cut = dual * advantage, True
    return Outcome(ZERO if cut else ratio, not cut, objective)


@transcribes("ppo_clip", eps_low=0.2, eps_high=0.2)
@transcribes("gspo", eps_low=3e-4, eps_high=4e-4)
def ppo_clip(x, eps_low, eps_high):
    return _surrogate(x.w, x.advantage, eps_low, eps_high)


@transcribes("dual_clip", eps_low=0.2, eps_high=0.2, dual=3.0)
def dual_clip(x, eps_low, eps_high, dual):
    return _surrogate(x.w, x.advantage, eps_low, eps_high, dual)


@transcribes("decoupled_ppo", cap=5.0, eps_low=0.2, eps_high=0.2)
def decoupled_ppo(x, cap, eps_low, eps_high):
    found, k = _surrogate(x.r, x.advantage, eps_low, eps_high), min(x.k, cap)
    return Outcome(k * found.value, found.kept, k * found.objective)
