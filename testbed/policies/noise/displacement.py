"""Law of a drawn token's log-odds displacement under noise whose scale is the prefix's own.

The other tokens of a prefix enter through their probabilities given that the drawn one is left out. Two numbers of these
matter here, and one gives both: the runner-up's share m. The rest is taken as diffuse, so that its sum of exp(delta) is its
mean. The concentration sum pt^2 is then m^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import chi2

from testbed.core.errors import InputError
from testbed.policies.noise.scale_mixture import ScaleMixture

Array = np.ndarray[Any, np.dtype[np.float64]]
NORMAL_NODES = 24  # Gauss-Hermite, for the runner-up's perturbation
HALF_GRID = 700  # displacements on either side of 0
FARTHEST = 300.0  # largest displacement, nats
FINEST = 0.02  # below this the grid is even, beyond it geometric


@dataclass(frozen=True, slots=True)
class GridLaw:
    """A law on a fixed grid of displacements.

    Examples
    --------
    >>> law = GridLaw(np.array([-1.0, 0.0, 2.0]), np.array([0.5, 0.25, 0.25]))
    >>> law.mean, round(law.sd, 6)
    (0.0, 1.224745)
    """

    values: Array
    mass: Array  # total 1

    @property
    def mean(self) -> float:
        """Expectation."""
        return float((self.mass * self.values).sum())

    @property
    def sd(self) -> float:
        """Standard deviation."""
        return math.sqrt(float((self.mass * (self.values - self.mean) ** 2).sum()))

    def below(self, x: float) -> float:
        """Distribution function, between grid points by interpolation; a point's mass counts half at the point."""
        return float(np.interp(x, self.values, self.mass.cumsum() - self.mass / 2))

    def quantile(self, level: float) -> float:
        """Inverse of `below`."""
        return float(np.interp(level, self.mass.cumsum() - self.mass / 2, self.values))

    def spread(self, level: float, center: float = 0.0) -> float:
        """Smallest x with P(|eps - center| <= x) = level."""
        low, high = 0.0, FARTHEST
        for _ in range(60):
            middle = (low + high) / 2
            inside = self.below(center + middle) - self.below(center - middle)
            low, high = (middle, high) if inside < level else (low, middle)
        return high

    @property
    def mad(self) -> float:
        """Median absolute deviation from the median."""
        return self.spread(0.5, self.quantile(0.5))


def displacement_law(
    noise: ScaleMixture, uncertainty: float, runner_up: float, *, stretch: float = 1.0, drawn: bool = True
) -> GridLaw:
    """Law of eps = logit p - logit q of a token of trainer's probability p under this noise.

        eps = -delta_y + log(m exp(delta_1) + (1 - m) exp(v/2)),   delta_y, delta_1 ~ N(0, v),   v = (1 - r) tau^2
        drawn from q: the density is multiplied by 1/k, k = p + (1 - p) exp(eps), and normalized (C2)

    Parameters
    ----------
    noise : ScaleMixture      its common part moves no law, hence v
    uncertainty : float       1 - p, in [0, 1]
    runner_up : float         m in [0, 1]
    stretch : float           > 0, multiplies tau
    drawn : bool              False: the token is chosen without looking at the noise

    Returns
    -------
    GridLaw    of eps, nats

    Raises
    ------
    InputError   a parameter out of range, a level of scale 0 or correlation 1

    Gives      to first order Var(eps) = (1 - r) (1 + m^2) sd^2 (C3)
    Numerics   quadrature over tau and delta_1 on a fixed grid; quantiles good to about 1e-4 of the spread

    Examples
    --------
    >>> law = displacement_law(ScaleMixture((0.1,), (1.0,)), 0.5, 1.0)
    >>> round(law.sd, 3)
    0.141
    """
    if not 0 <= uncertainty <= 1:
        raise InputError("`uncertainty` must lie in [0, 1]", found=uncertainty)
    if not 0 <= runner_up <= 1:
        raise InputError("`runner_up` must lie in [0, 1]", found=runner_up)
    if not stretch > 0 or min(noise.sds) == 0 or noise.correlation == 1:
        raise InputError("the noise must move every law", found="a scale of 0, or correlation 1")
    values, mass = _undrawn(noise, runner_up, stretch)
    if drawn:
        mass = mass / (1 - uncertainty + uncertainty * np.exp(values))
    return GridLaw(values, mass / mass.sum())


@lru_cache(maxsize=64)
def _undrawn(noise: ScaleMixture, runner_up: float, stretch: float) -> tuple[Array, Array]:
    """Grid and masses of the displacement of a token chosen without looking at the noise; its p does not matter."""
    reach = math.asinh(FARTHEST / FINEST)
    x, step = np.linspace(-reach, reach, 2 * HALF_GRID + 1, retstep=True)
    values, width = FINEST * np.sinh(x), FINEST * np.cosh(x) * step
    variance, weight = _variances(noise, stretch)
    z, z_mass = np.polynomial.hermite_e.hermegauss(NORMAL_NODES)
    density = np.zeros_like(values)
    for v, w in zip(variance, weight, strict=True):
        with np.errstate(divide="ignore"):
            others = np.logaddexp(np.log(runner_up) + math.sqrt(v) * z, np.log1p(-runner_up) + v / 2)
        kernel = np.exp(-((values - others[:, None]) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)
        density += w * (z_mass / z_mass.sum()) @ kernel
    return values, density * width


def pooled(laws: Sequence[GridLaw], shares: Sequence[float]) -> GridLaw:
    """Mixture of laws on the same grid."""
    total = math.fsum(shares)
    return GridLaw(laws[0].values, np.sum([w / total * law.mass for w, law in zip(shares, laws, strict=True)], axis=0))


def _variances(noise: ScaleMixture, stretch: float) -> tuple[Array, Array]:
    """Nodes and weights of v = (1 - r) (stretch tau)^2."""
    level = (1 - noise.correlation) * (stretch * np.array(noise.sds)) ** 2
    if math.isinf(noise.df):
        return level, np.array(noise.shares)
    u = np.arange(math.log(level.min()) - 5, math.log(level.max()) + 13, 0.25)  # log v
    scaled = level[:, None] * (noise.df - 2) * np.exp(-u)
    weight = np.array(noise.shares) @ (chi2.pdf(scaled, noise.df) * scaled)
    return np.exp(u), weight / weight.sum()
