"""What a noise law is: how the perturbations delta_j of a prefix's logits are drawn, and what is known about one of them.

Perturbations are added to the target's logits; the behavior is softmax(log p + delta). Everything here is symmetric about
0, and a constant added to all logits of a prefix changes no law: only differences of perturbations count.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.noise.streams import NoiseStreams


class NoiseLaw(ABC):
    """A joint law of the perturbations of one prefix's logits, independent between prefixes."""

    @abstractmethod
    def draw(self, streams: NoiseStreams, log_probs: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Perturbations, one row per stream, nats; a law may look at the unperturbed `log_probs`."""


class MarginalLaw(NoiseLaw):
    """A noise law under which every logit's perturbation has one marginal law, whatever the prefix's own law is."""

    @property
    @abstractmethod
    def sd(self) -> float:
        """Standard deviation of one perturbation, nats."""

    @abstractmethod
    def mgf(self, t: float) -> float:
        """Moment generating function E exp(t delta_j); inf where it diverges."""

    @abstractmethod
    def tail(self, x: float) -> float:
        """P(|delta_j| > x)."""

    @abstractmethod
    def quantile(self, level: float) -> float:
        """Smallest x >= 0 with P(|delta_j| <= x) >= level."""

    def pair_moment(self) -> float:
        """E exp(delta_i - delta_j) for two different logits; M(1) M(-1) when they are independent."""
        return self.mgf(1.0) * self.mgf(-1.0)

    def expected_second_moment(self, probs: Float[Tensor, " V"]) -> float:
        """Average over the noise of d2 = E_q[(p/q)^2], q = softmax(log p + delta).

            E_delta d2 = sum p^2 + (1 - sum p^2) E exp(delta_i - delta_j)

        Assumes    one `pair_moment` for every pair of logits
        Gives      checked by theorem C5; infinite for Laplace noise of scale >= 1 and for every Student t

        Examples
        --------
        >>> import torch
        >>> from testbed.policies.noise.gaussian import Gaussian
        >>> round(Gaussian(0.5).expected_second_moment(torch.tensor([0.5, 0.5])), 6)
        1.142013
        """
        same = float(probs.double().square().sum())
        return 1.0 if same >= 1.0 else same + (1 - same) * self.pair_moment()


def require_scale(name: str, value: float) -> None:
    """Raise InputError unless a scale is finite and >= 0."""
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"`{name}` must be finite and >= 0", found=value)


def require_level(level: float) -> None:
    """Raise InputError unless a quantile's level lies in [0, 1)."""
    if not 0 <= level < 1:
        raise InputError("`level` must lie in [0, 1)", found=level)


def require_correlation(correlation: float) -> None:
    """Raise InputError unless an equicorrelation lies in [0, 1]."""
    if not 0 <= correlation <= 1:
        raise InputError("`correlation` must lie in [0, 1]", found=correlation)
