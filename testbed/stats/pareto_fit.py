"""The generalized Pareto law: Zhang and Stephens' empirical-Bayes fit, and its quantiles.

    density (1/sigma) (1 + k x / sigma)^(-1/k - 1) for x > 0;   with b = -k / sigma:  k(b) = mean log(1 - b x)

The profile log-likelihood in b is n (log(-b / k(b)) - k(b) - 1). The estimate of b is its posterior mean over a grid of
quantiles of a data-scaled prior, which needs no optimizer and cannot fail to converge.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

GRID_BASE = 30  # grid points beyond sqrt(n)
SCALE_OF_PRIOR = 3.0  # the prior of b is scaled by 1 / (3 x first quartile)
PRIOR_SHAPE, PRIOR_COUNT = 0.5, 10.0  # k is shrunk as if 10 further values said 1/2
SMALLEST_QUARTILE = 1e-290  # keeps the grid finite when the tail spans all of float64


def fit_generalized_pareto(excess: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Estimate (k, sigma) from positive values in ascending order, k shrunk towards 1/2.

    Parameters
    ----------
    excess : Float[ndarray, " n"]     > 0, ascending, not all equal, n >= 5

    Returns
    -------
    (k, sigma)   both finite, sigma > 0 (sigma belongs to k before shrinkage)
    References   Zhang and Stephens (2009), equations 7 to 10; shrinkage: Vehtari et al. (2024), Appendix C

    Examples
    --------
    >>> levels = (np.arange(2000) + 0.5) / 2000
    >>> [round(v, 1) for v in fit_generalized_pareto(generalized_pareto_quantile(levels, 0.3, 2.0))]
    [0.3, 2.0]
    """
    n = len(excess)
    size = GRID_BASE + int(np.sqrt(n))
    quartile = max(excess[int(n / 4 + 0.5) - 1], SMALLEST_QUARTILE)
    steps = 1.0 - np.sqrt(size / (np.arange(1, size + 1) - 0.5))
    grid = 1.0 / excess[-1] + steps / (SCALE_OF_PRIOR * quartile)  # < 1 / max, so 1 - b x > 0 everywhere
    shape = np.log1p(-grid[:, None] * excess).mean(axis=1)
    ratio = np.divide(-grid, shape, out=np.full(size, 1.0 / excess.mean()), where=shape != 0)  # b -> 0: exponential
    profile = n * (np.log(ratio) - shape - 1.0)
    posterior = np.exp(profile - profile.max())
    b = float((grid * posterior).sum() / posterior.sum())
    k = float(np.log1p(-b * excess).mean())
    sigma = -k / b if b != 0.0 else float(excess.mean())
    return (n * k + PRIOR_COUNT * PRIOR_SHAPE) / (n + PRIOR_COUNT), sigma


def generalized_pareto_quantile(probs: Float[np.ndarray, " m"], k: float, sigma: float) -> Float[np.ndarray, " m"]:
    """Quantiles sigma ((1 - p)^(-k) - 1) / k of the law; -sigma log(1 - p) at k = 0.

    Examples
    --------
    >>> generalized_pareto_quantile(np.array([0.0, 0.75]), 0.5, 1.0)
    array([0., 2.])
    """
    if abs(k) < np.finfo(np.float64).eps:
        return -sigma * np.log1p(-probs)
    with np.errstate(over="ignore"):  # inf is the right quantile of a tail that leaves float64
        return sigma * np.expm1(-k * np.log1p(-probs)) / k
