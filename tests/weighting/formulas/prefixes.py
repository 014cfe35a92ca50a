"""Rules that read the tokens before t, and the product cut segment by segment."""

import mpmath

from tests.weighting.transcription import Outcome, transcribes


@transcribes("minpro")
def minpro(x):
    return Outcome(x.rho * min(x.row.ratios[: x.t], default=mpmath.mpf(1)))


@transcribes("pnpo")
def pnpo(x):
    return Outcome(mpmath.root(mpmath.fprod(x.row.ratios[: x.t + 1]), x.t + 1))


@transcribes("vtrace", rho_cap=1.0, c_cap=1.0, lam=1.0)
def vtrace(x, rho_cap, c_cap, lam):
    return Outcome(min(rho_cap, x.rho) * mpmath.fprod(lam * min(c_cap, rho) for rho in x.row.ratios[: x.t]))


@transcribes("spire", cap="auto")
def spire(x, cap):
    """Fixed caps only: the automatic one is a root over the whole batch, and has tests of its own."""
    product = mpmath.fprod(
        rho for rho, label in zip(x.row.ratios, x.row.segment, strict=True) if label <= x.row.segment[x.t]
    )
    if cap == "none":
        return Outcome(product)
    return Outcome(min(product, cap[x.row.segment[x.t]] if isinstance(cap, list) else cap))
