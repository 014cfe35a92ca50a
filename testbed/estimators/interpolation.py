"""How much of a correction to apply: the mixture of an uncorrected and a corrected gradient with the least error.

For batch means g0 of the uncorrected terms (bias b0) and g1 of the corrected ones (unbiased),

    MSE(a) = (1-a)^2 |b0|^2 + Var g0 + 2 a Cov(g0, g1 - g0) + a^2 Var(g1 - g0)

is a parabola that opens upward, with its vertex at

    a* = (|b0|^2 - Cov(g0, g1 - g0)) / (|b0|^2 + Var(g1 - g0))        (C13)

Variances fall with the batch and the bias does not, so a* -> 1. Norms are Euclidean over all parameters: variances are
traces of covariance matrices. What `ais` computes from the weights alone is to be compared with this, not confused with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.weighting.limits import at_least


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The parabola of the mean squared error, and its minimum on [0, 1].

    Attributes
    ----------
    alpha : float          a*, clipped to [0, 1]; 1 where both gradients are the same
    bias2 : float          |b0|^2
    variance : float       Var g0 of the batch mean
    covariance : float     Cov(g0, g1 - g0) of the batch means
    spread : float         Var(g1 - g0) of the batch means
    """

    alpha: float
    bias2: float
    variance: float
    covariance: float
    spread: float

    def mse(self, alpha: float) -> float:
        """Mean squared error of (1 - alpha) g0 + alpha g1 as an estimate of E g1."""
        return (1 - alpha) ** 2 * self.bias2 + self.variance + 2 * alpha * self.covariance + alpha**2 * self.spread


def optimal_interpolation(
    uncorrected: Float[Tensor, "N ..."],
    corrected: Float[Tensor, "N ..."],
    n: float | int | None = None,
    probs: Float[Tensor, " N"] | None = None,
) -> Interpolation:
    """Mixture of two gradients with the least mean squared error.

        a* = clip((|b0|^2 - Cov(g0, g1-g0)) / (|b0|^2 + Var(g1-g0)), 0, 1)

    Parameters
    ----------
    uncorrected, corrected : Float[Tensor, "N ..."]   one term per response (`gradient_terms`), the same responses in both
    n : float                     responses in the batch whose mean is taken; None: N
    probs : Float[Tensor, " N"]   exact probability of each response; None: a sample of independent ones

    Returns
    -------
    Interpolation

    Raises
    ------
    InputError   different shapes; n < 1; fewer than two responses of a sample; probs that do not sum to 1

    Assumes        the corrected gradient is unbiased. With `probs` the answer is exact; from a sample it is a plug-in: moments
                   with N - 1, |b0|^2 less the Var(g1-g0)/N that noise adds to it, and not below 0
    Gives          C13

    Examples
    --------
    >>> g0, g1 = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    >>> half = torch.tensor([0.5, 0.5])
    >>> best = optimal_interpolation(g0, g1, n=1, probs=half)  # b0 = 1/2, no variance of g0, Var(g1 - g0) = 1/4
    >>> best.alpha, best.mse(0.0), best.mse(0.5), best.mse(1.0)
    (0.5, 0.25, 0.125, 0.25)
    """
    require_shape("corrected", corrected, tuple(uncorrected.shape))
    rows = uncorrected.shape[0]
    size = at_least("n", rows if n is None else n, 1.0)
    if probs is None and rows < 2:
        raise InputError("a sample needs at least two responses", found=rows)
    law = torch.full((rows,), 1.0 / rows, dtype=torch.float64) if probs is None else probs.double()
    if tuple(law.shape) != (rows,) or not abs(float(law.sum()) - 1.0) <= 1e-9:
        raise InputError(
            "`probs` must hold one probability per response and sum to 1", found=f"sum {float(law.sum()):g}"
        )
    g0 = uncorrected.detach().double().reshape(rows, -1)
    step = corrected.detach().double().reshape(rows, -1) - g0
    scale = 1.0 if probs is not None else rows / (rows - 1.0)
    mean0, mean_step = law @ g0, law @ step
    around0, around_step = g0 - mean0, step - mean_step

    def trace(a: Tensor, b: Tensor) -> float:
        return scale * float(law @ (a * b).sum(1)) / size

    variance, covariance, spread = trace(around0, around0), trace(around0, around_step), trace(around_step, around_step)
    bias2 = float(mean_step.square().sum())
    if probs is None:
        bias2 = max(bias2 - spread * size / rows, 0.0)
    curvature = bias2 + spread
    alpha = 1.0 if curvature == 0.0 else min(max((bias2 - covariance) / curvature, 0.0), 1.0)
    return Interpolation(alpha, bias2, variance, covariance, spread)
