"""E min(W, c), E(W - c)+, E min(W, c)^2 and P(W > c) by integrating the law of W, knowing no closed form.

Densities are integrated adaptively with the kink at the cap as an end point. Discrete laws are integrated along the
weight axis instead ("layer cake"): E g(W) = g(0) + the integral of g'(w) P(W > w), whose integrand is a step function
times a polynomial, so that the midpoint rule between its jumps is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.integrate import quad

PRECISION = 1e-13
REACH = 12.0  # standard deviations beyond which a normal density is below 1e-31 of its peak

Integrals = tuple[float, float, float, float]


def _integral(f: Callable[[float], float], low: float, high: float) -> float:
    return quad(f, low, high, epsabs=0.0, epsrel=PRECISION, limit=200)[0] if high > low else 0.0


def log_normal_integrals(sigma: float, cap: float) -> Integrals:
    """Integrals over the standard normal Z behind W = exp(sigma Z - sigma^2/2), sigma > 0.

    Examples
    --------
    >>> mean, excess, second, tail = log_normal_integrals(1.0, 2.0)
    >>> abs(mean + excess - 1) < 1e-12
    True
    """
    kink = math.log(cap) / sigma + sigma / 2

    def under(power: int, low: float, high: float, shift: float = 0.0) -> float:
        peak = power * sigma  # where W^power times the density is largest
        low, high = max(low, peak - REACH), min(high, max(peak, low) + REACH)

        def integrand(z: float) -> float:
            log_w = sigma * z - sigma**2 / 2
            return (1.0 - shift * math.exp(-log_w)) * math.exp(power * log_w - z**2 / 2)

        middle = min(max(peak, low), high)
        return (_integral(integrand, low, middle) + _integral(integrand, middle, high)) / math.sqrt(2 * math.pi)

    tail = under(0, kink, math.inf)
    mean, second = (under(k, -math.inf, kink) + cap**k * tail for k in (1, 2))
    return mean, under(1, kink, math.inf, cap), second, tail


def uniform_integrals(half_width: float, cap: float) -> Integrals:
    """Integrals over W uniform on [1 - h, 1 + h], h > 0.

    Examples
    --------
    >>> [round(x, 12) for x in uniform_integrals(1.0, 1.0)]
    [0.75, 0.25, 0.666666666667, 0.5]
    """
    low, high = 1 - half_width, 1 + half_width
    cut = min(max(cap, low), high)
    tail = _integral(lambda w: 1 / (2 * half_width), cut, high)
    mean, second = (_integral(lambda w, k=k: w**k / (2 * half_width), low, cut) + cap**k * tail for k in (1, 2))
    return mean, _integral(lambda w: (w - cap) / (2 * half_width), cut, high), second, tail


def layer_cake_integrals(values: Sequence[float], probs: Sequence[float], cap: float) -> Integrals:
    """Integrals of P(W > w) along the weight axis, for a discrete law.

    Examples
    --------
    >>> layer_cake_integrals([0.5, 2.5], [0.75, 0.25], 1.5)
    (0.75, 0.25, 0.75, 0.25)
    """
    order = np.argsort(values)
    w, p = np.asarray(values, dtype=np.float64)[order], np.asarray(probs, dtype=np.float64)[order]
    above = np.append(np.cumsum(p[::-1])[::-1], 0.0)  # above[i] = probability of w[i:]

    def along(low: float, high: float, power: int) -> float:
        edges = np.unique(np.concatenate([[low, high], w[(w > low) & (w < high)]]))
        middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        exceed = above[np.searchsorted(w, middle, side="right")]
        return float((power * middle ** (power - 1) * exceed * width).sum())

    tail = float(above[np.searchsorted(w, cap, side="right")])
    return along(0.0, cap, 1), along(cap, max(cap, float(w[-1])), 1), along(0.0, cap, 2), tail
