"""Weight statistics from log-weights, for products of ratios over long responses that no float can hold.

    log ess = 2 logsumexp(l) - logsumexp(2 l),   renyi2 = logsumexp(2 l) - log n

Where the weight itself fits into a float these agree with `weight_statistics.py`.
"""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor

from testbed.stats.weight_sample import WeightSample, WeightStatistic, kish_fraction, weight_sample


def ess_from_log(
    log_weights: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, *, which: str = "raw"
) -> WeightStatistic:
    """Kish's effective sample size of weights given by their logarithms.

    Parameters
    ----------
    log_weights : Float[Tensor, "..."]     nats, any common shift; -inf is a weight of 0
    mask : Bool[Tensor, "..."] or None     True on real entries

    Returns
    -------
    WeightStatistic   in [1, n]; 0 when every weight is 0 or none is real; +inf entries as in `ess`

    Raises
    ------
    InputError   NaN on a real entry

    Examples
    --------
    >>> import torch
    >>> ess_from_log(torch.tensor([5000.0, 5000.0, -5000.0]))
    ess(raw weights, n=3) = 2
    """
    sample = weight_sample(log_weights, mask, log=True)
    return WeightStatistic(sample.n * kish_fraction(_shifted(sample)[1]), name="ess", which=which, n=sample.n)


def renyi2_from_log(
    log_weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
) -> WeightStatistic:
    """Renyi divergence of order 2, log E[w^2] in nats, of weights given by their logarithms.

    Returns
    -------
    WeightStatistic   0 when no entry is real; -inf when every weight is 0

    Raises
    ------
    InputError   NaN on a real entry

    Examples
    --------
    >>> import torch
    >>> renyi2_from_log(torch.tensor([5000.0, 5000.0]))
    renyi2(raw weights, n=2) = 10000
    """
    sample = weight_sample(log_weights, mask, probs, log=True)
    shift, scaled = _shifted(sample)
    if sample.n and math.isfinite(shift):
        value = 2.0 * shift + math.log(scaled.mean(scaled.values.square()))
    else:
        value = shift if sample.n else 0.0
    return WeightStatistic(value, name="renyi2", which=which, n=sample.n)


def _shifted(sample: WeightSample) -> tuple[float, WeightSample]:
    """Return (largest log-weight, weights relative to it); where that is infinite, the weights themselves."""
    shift = float(sample.values.max()) if sample.n else 0.0
    return shift, WeightSample((sample.values - (shift if math.isfinite(shift) else 0.0)).exp(), sample.probs)
