"""E(W - c)+ of a log-normal weight without cancellation, from the Mills ratio of the normal law."""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtr

SERIES_BELOW = 0.02  # sigma under which two nearly equal tails are subtracted as a series


def density(x: float) -> float:
    """Standard normal density."""
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def mills(x: float) -> float:
    """Mills ratio R(x) = P(Z > x) / phi(x), for x >= 0."""
    return math.sqrt(math.pi / 2.0) * float(erfcx(x / math.sqrt(2.0)))


def log_normal_excess(z: float, sigma: float) -> float:
    """E(W - e^{sigma z})+ for z >= 0: P(Z > a) - phi(a) R(b) = phi(a) (R(a) - R(b)) with a, b = z -+ sigma/2."""
    half = sigma / 2
    low = z - half
    if low > 39.0:  # the density is below the smallest float
        return 0.0
    if sigma < SERIES_BELOW:  # R' = x R - 1, and each derivative follows from the two before
        r0 = mills(z)
        r1 = z * r0 - 1.0
        r2 = r0 + z * r1
        r3 = 2.0 * r1 + z * r2
        r4 = 3.0 * r2 + z * r3
        r5 = 4.0 * r3 + z * r4
        return -2.0 * half * density(low) * (r1 + half**2 / 6.0 * (r3 + half**2 / 20.0 * r5))
    if low < 0:
        return float(ndtr(-low)) - density(low) * mills(z + half)
    return density(low) * (mills(low) - mills(z + half))
