"""Pareto k and Pareto-smoothed weights: how heavy is the upper tail of the importance weights?

The M largest weights, less the next one down, are fitted by a generalized Pareto law with shape k and scale sigma,

    P(X > x) = (1 + k x / sigma)^(-1/k),        moments of order < 1/k exist

by the empirical-Bayes estimate of Zhang and Stephens (2009), with k then shrunk towards 1/2 as if 10 more values had
said so. M = n // 5 up to n = 225 and floor(3 sqrt(n)) above, the lengths of arviz-stats 1.3.3 (arviz 0.23 rounds up).
k < 1/2: finite variance; k < 0.7: usable; above: the largest weights decide the answer.

The argument is the weight (or +log w), never the log-likelihood: arviz-stats wants minus log-weights, arviz plus.
Smoothing is done at every k, also below 1/3, as in the references.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.pareto_fit import fit_generalized_pareto, generalized_pareto_quantile
from testbed.stats.weight_sample import WeightStatistic, weight_sample

FEWEST_TAIL_VALUES = 5
SMALLEST_CUTOFF = math.log(np.finfo(np.float64).tiny)  # below this exp(log w - max) is 0: the body is taken to end at 0


class SmoothedWeights(NamedTuple):
    """Smoothed log-weights in the shape given (-inf on padding), the shape k, and how many values the tail holds."""

    log_weights: Tensor
    k: WeightStatistic
    tail: int


def pareto_k(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    tail_length: int | None = None,
) -> WeightStatistic:
    """Shape k of the generalized Pareto law fitted to the largest weights.

    Parameters
    ----------
    weights : Float[Tensor, "..."]         >= 0, any common scale; all entries form one sample
    mask : Bool[Tensor, "..."] or None     True on real entries
    which : str                            "raw" or "applied"
    tail_length : int or None              M; None takes the length described in the module

    Returns
    -------
    WeightStatistic   never NaN. Where the tail has no shape to estimate the answer is one-sided on purpose:
        -inf   the M largest weights are all equal, or the whole sample is (on-policy, or capped so that the tail sits
               at the cap): a point mass is the limit k -> -inf of a bounded tail, no extreme draw decides anything
        +inf   not certified: fewer than 5 weights above the cutoff (also n < 25), those all equal, an infinite
               weight, or no positive weight at all. 99 zeros and one 5 is such a case, not a good one

    Raises
    ------
    InputError   NaN or negative real weight; tail_length not in [1, n - 1]
    Assumes      continuous weights, drawn independently
    References   Zhang and Stephens (2009), Technometrics 51(3); Vehtari et al. (2024), JMLR 25(72), Appendix C

    Examples
    --------
    >>> pareto_k(torch.ones(100))
    pareto_k(raw weights, n=100) = -inf
    >>> quantiles = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    >>> round(pareto_k((1 - quantiles) ** -0.5), 2)  # a Pareto law with k = 1/2
    0.5
    """
    sample = weight_sample(weights, mask)
    return _fit(sample.values.log().cpu().numpy(), which, tail_length).k


def pareto_k_from_log(
    log_weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    tail_length: int | None = None,
) -> WeightStatistic:
    """`pareto_k` of weights given by +log w in nats (-inf is a weight of 0).

    Examples
    --------
    >>> pareto_k_from_log(torch.full((100,), 5000.0))
    pareto_k(raw weights, n=100) = -inf
    """
    return _fit(weight_sample(log_weights, mask, log=True).values.cpu().numpy(), which, tail_length).k


def psis_smooth(
    log_weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    normalize: bool = True,
    tail_length: int | None = None,
) -> SmoothedWeights:
    """Replace the tail weights by the quantiles of the fitted law, never above the largest raw weight.

        log w_(j) -> min(log(cutoff + Q((j - 1/2) / M)), max log w),   j = 1..M from the smallest of the tail

    Parameters
    ----------
    log_weights : Float[Tensor, "..."]     +log w in nats; -inf is a weight of 0
    normalize : bool                       True: the weights sum to 1; False: the scale of the input is kept

    Returns
    -------
    SmoothedWeights   float64; weights are left as they are where `pareto_k` is infinite

    Raises
    ------
    InputError   NaN on a real entry; tail_length not in [1, n - 1]
    Gives        a biased estimator with finite variance; the order of the weights is kept
    Numerics     infinite weights share everything equally when normalized

    Examples
    --------
    >>> smoothed = psis_smooth(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    >>> smoothed.log_weights.exp(), smoothed.k
    (tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64), pareto_k(raw weights, n=2) = -inf)
    """
    sample = weight_sample(log_weights, mask, log=True)
    values = sample.values.cpu().numpy()
    fitted = _fit(values, which, tail_length)
    smooth = values.copy()
    if len(fitted.tail_index):
        top = values.max()
        probs = (np.arange(len(fitted.tail_index)) + 0.5) / len(fitted.tail_index)
        excess = generalized_pareto_quantile(probs, float(fitted.k), fitted.sigma)
        smooth[fitted.tail_index] = np.minimum(np.log(excess + fitted.cutoff), 0.0) + top
    if normalize and len(smooth) and smooth.max() > -math.inf:
        top = smooth.max()
        relative = np.where(smooth == top, 0.0, -math.inf) if math.isinf(top) else smooth - top
        smooth = relative - math.log(np.exp(relative).sum())
    out = torch.full(torch.as_tensor(log_weights).shape, -math.inf, dtype=torch.float64)
    keep = torch.ones_like(out, dtype=torch.bool) if mask is None else torch.as_tensor(mask).cpu()
    out[keep] = torch.from_numpy(smooth)
    return SmoothedWeights(out.to(sample.values.device), fitted.k, len(fitted.tail_index))


class _TailFit(NamedTuple):
    k: WeightStatistic
    sigma: float = math.nan
    cutoff: float = math.nan  # relative to the largest weight
    tail_index: np.ndarray = np.empty(0, dtype=np.int64)  # ascending in weight


def _fit(log_weights: np.ndarray, which: str, tail_length: int | None) -> _TailFit:
    """Fit the tail, or say which one-sided answer stands in for a fit."""
    n = len(log_weights)
    if tail_length is not None and not 1 <= tail_length < max(n, 2):
        raise InputError(f"`tail_length` must be in [1, n - 1] with n = {n}", found=tail_length)
    m = tail_length or (n // 5 if n <= 225 else math.floor(3.0 * math.sqrt(n)))

    def answer(k: float) -> _TailFit:
        return _TailFit(WeightStatistic(k, name="pareto_k", which=which, n=n))

    top = log_weights.max() if n else -math.inf
    if math.isinf(top):
        return answer(math.inf)
    if log_weights.min() == top:
        return answer(-math.inf)
    if m < FEWEST_TAIL_VALUES:
        return answer(math.inf)
    order = np.sort(
        np.argpartition(log_weights, n - m - 1)[n - m - 1 :]
    )  # the m + 1 largest, then by position and weight
    order = order[np.argsort(log_weights[order], kind="stable")]
    relative = log_weights[order] - top
    if relative[1] == 0.0:
        return answer(-math.inf)
    cutoff = max(relative[0], SMALLEST_CUTOFF)
    first = int(np.searchsorted(relative, cutoff, side="right"))
    excess = np.exp(relative[first:]) - math.exp(cutoff)
    first += int((excess <= 0.0).sum())  # equal to the cutoff once exponentiated: body, like any tie with it
    excess = excess[excess > 0.0]
    if len(excess) < FEWEST_TAIL_VALUES or excess[0] == excess[-1]:
        return answer(math.inf)
    k, sigma = fit_generalized_pareto(excess)
    return answer(k)._replace(sigma=sigma, cutoff=math.exp(cutoff), tail_index=order[first:])
