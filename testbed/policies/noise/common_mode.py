"""Noise of which a part is shared by all logits of a prefix and moves no law: equicorrelated perturbations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor

from testbed.policies.noise.law import MarginalLaw, require_correlation, require_level
from testbed.policies.noise.streams import NoiseStreams


@dataclass(frozen=True, slots=True)
class CommonMode(MarginalLaw):
    """A common perturbation plus independent ones, both of one family.

        delta_j = sqrt(r) c + sqrt(1 - r) z_j,   c and the z_j independent draws of `law`
        Cov(delta_i, delta_j) = sd^2 (r + (1 - r) 1{i = j}),   M(t) = M_law(sqrt(r) t) M_law(sqrt(1 - r) t)

    Parameters
    ----------
    law : MarginalLaw     of independent perturbations
    correlation : float   r in [0, 1]; 0 is `law` itself, bit for bit

    Raises
    ------
    InputError   unless correlation lies in [0, 1]

    Gives      softmax(log p + delta) does not depend on c: the behavior is that of `law` shrunk by sqrt(1 - r), while the
               marginal spread stays `law.sd` (C3). The sum of two draws is of the same family only for a Gaussian
    Numerics   `tail` and `quantile` by quadrature over the common part

    Examples
    --------
    >>> from testbed.policies.noise.gaussian import Gaussian
    >>> law = CommonMode(Gaussian(0.5), 0.36)
    >>> law.covariance(2), round(law.pair_moment() / Gaussian(0.4).pair_moment(), 12)
    (tensor([[0.2500, 0.0900],
            [0.0900, 0.2500]], dtype=torch.float64), 1.0)
    """

    law: MarginalLaw
    correlation: float

    def __post_init__(self) -> None:
        require_correlation(self.correlation)

    @property
    def shares(self) -> tuple[float, float]:
        """Factors (sqrt(r), sqrt(1 - r)) of the common and the own part."""
        return math.sqrt(self.correlation), math.sqrt(1 - self.correlation)

    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations; the own parts are those of `law` with the same streams."""
        common, own = self.shares
        return own * self.law.draw(streams, log_probs) + common * self.law.draw(
            streams.child("common"), log_probs[:, :1]
        )

    @property
    def sd(self) -> float:
        """Standard deviation of one perturbation."""
        return self.law.sd

    def covariance(self, size: int) -> Float[Tensor, "V V"]:
        """Covariance matrix of the perturbations of `size` logits."""
        r = self.correlation
        return self.sd**2 * (r + (1 - r) * torch.eye(size, dtype=torch.float64))

    def mgf(self, t: float) -> float:
        """E exp(t delta_j)."""
        common, own = self.shares
        return self.law.mgf(common * t) * self.law.mgf(own * t)

    def pair_moment(self) -> float:
        """E exp(delta_i - delta_j): the common part cancels."""
        own = self.shares[1]
        return self.law.mgf(own) * self.law.mgf(-own)

    def tail(self, x: float) -> float:
        """P(|delta_j| > x) = E[P(own > x - |common|) + P(own > x + |common|)]."""
        common, own = self.shares
        if x < 0 or common * own == 0:
            return self.law.tail(x)

        def above(y: float) -> float:
            half = self.law.tail(abs(y) / own) / 2
            return half if y >= 0 else 1 - half

        def integrand(u: float) -> float:
            shift = common * self.law.quantile(u)
            return above(x - shift) + above(x + shift)

        return quad(integrand, 0.0, 1.0, epsabs=0.0, epsrel=1e-9, limit=400, points=[0.5, 0.9, 0.99, 0.999])[0]

    def quantile(self, level: float) -> float:
        """Smallest x with P(|delta_j| <= x) >= level."""
        require_level(level)
        high = sum(self.shares) * self.law.quantile(1 - (1 - level) / 2)
        if high == 0:
            return 0.0
        return float(brentq(lambda x: self.tail(x) - (1 - level), 0.0, high, rtol=1e-10))  # pyright: ignore[reportArgumentType]
