"""The cap of least mean squared error for a mean-one weight and a constant signal: the root of c = 1 + (n-1) B(c).

B(c) = E(W - c)+ falls in c, so the root is unique, and it is the only stationary point of B(c)^2 + Var(min(W, c)) / n
below the largest weight (O1). For a finite law B is piecewise linear and the root is a quotient, without iteration.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from testbed.weighting.cap_law import CapLaw
from testbed.weighting.weight_family import WeightFamily


def excess_at_atoms(law: CapLaw) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """B at each weight of the law, and P(W >= w): minus the slope of B just below it.

        B(w_j) = sum over k >= j of (w_{k+1} - w_k) P(W >= w_{k+1})

    A sum of non-negative parts: relative precision far out in the tail too.

    Examples
    --------
    >>> from testbed.weighting.cap_law import cap_law
    >>> excess, reach = excess_at_atoms(cap_law([0.5, 1.0, 3.0], [0.5, 0.375, 0.125]))
    >>> excess.tolist(), reach.tolist()
    ([0.5, 0.25, 0.0], [1.0, 0.5, 0.125])
    """
    reach = law.probs[::-1].cumsum()[::-1]
    parts = np.diff(law.values) * reach[1:]
    return np.append(parts[::-1].cumsum()[::-1], 0.0), reach


def finite_cap(law: CapLaw, n: float | int) -> float:
    """Root of c = 1 + (n-1) B(c) for a finite law (O1).

    Parameters
    ----------
    law : CapLaw   a sample counts as a law of mean 1 that was seen through its B only
    n : float      draws, >= 1

    Returns
    -------
    float          >= 1; 1 for n = 1. When all weights are equal no cap can help, and the answer is one that never acts

    Examples
    --------
    >>> from testbed.weighting.cap_law import cap_law
    >>> finite_cap(cap_law([0.0, 2.0], [0.5, 0.5]), 8)  # c = 1 + 7 (2 - c) / 2
    1.7777777777777777
    """
    if n == 1:
        return 1.0
    w = law.values
    if w[0] == w[-1]:
        return max(float(w[0]), 1.0)
    excess, reach = excess_at_atoms(law)
    gap = (w - 1.0) - (n - 1.0) * excess  # increasing; the root is where it crosses 0
    j = int(np.searchsorted(gap, 0.0))
    if j == len(w):  # every weight of a sample is below 1
        return 1.0
    return max(float(w[j] - gap[j] / (1.0 + (n - 1.0) * reach[j])), 1.0)


def family_cap(family: WeightFamily, n: float | int) -> float:
    """Root of c = 1 + (n-1) B(c) for a closed-form family, bracketed in [1, n] and located to 1e-12 relative.

    Examples
    --------
    >>> from testbed.weighting.weight_families import LogNormal, UniformRatio
    >>> round(family_cap(LogNormal(1.2), 64), 6), round(family_cap(UniformRatio(1.0), 2), 6)
    (5.927516, 1.171573)
    """
    if n == 1 or family.supremum <= 1.0:
        return 1.0
    # B(1) < 1 and B falls: the difference is negative at 1 and positive at n and at the supremum
    top = min(n, family.supremum)

    def gap(cap: float) -> float:
        return cap - 1.0 - (n - 1.0) * family.excess(cap)

    return float(brentq(gap, 1.0, top, xtol=1e-15, full_output=True)[0])


def second_moment_cap(law: CapLaw, n: float | int) -> float:
    """Root of c = n B(c): what minimizing bias^2 + E min(W, c)^2 / n gives, the second moment in place of the variance.

    Below 1 where the weights are nearly constant, n/(n+1) at W = 1: it truncates on-policy data (O1).

    Examples
    --------
    >>> from testbed.weighting.cap_law import cap_law
    >>> second_moment_cap(cap_law([1.0], [1.0]), 8)
    0.8888888888888888
    """
    excess, reach = excess_at_atoms(law)
    gap = law.values - n * excess
    j = int(np.searchsorted(gap, 0.0))  # the last gap is the largest weight, which is no less than 0
    return float(law.values[j] - gap[j] / (1.0 + n * reach[j]))
