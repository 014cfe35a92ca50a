"""Effective sample size, mean, second moment, chi-square and Renyi-2 divergence of importance weights.

    d2 = E_behavior[w^2],   chi2 = d2 - 1,   renyi2 = log d2,   Kish's ess = (sum w)^2 / sum w^2  ->  n / d2

Every function takes the weights of a sample, or with `probs` the weights of all support points of an exact law. All are
computed in float64 after dividing by the largest weight, so weights of 1e300 give an answer; for products of so many
ratios that the weight itself overflows, see `log_weights.py`. Pareto k is in `pareto_tail.py`, divergences estimated
token by token in `divergence.py`. Weights are counted one by one: with shape [B, T], a long response counts more.

A high effective sample size does not certify a run: it is blind to errors of one sign and, at the token level, to how
they compound over a response. Look at `mean_weight` minus 1 and at the response-level second moment beside it.
"""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.weight_sample import (
    WeightSample,
    WeightStatistic,
    kish_fraction,
    relative_to_largest,
    weight_sample,
)


def ess(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
    n: int | None = None,
) -> WeightStatistic:
    """Kish's effective sample size of the weights.

        ess = (sum w)^2 / sum w^2;   with an exact law: n (E w)^2 / E[w^2], which is n / d2 when E w = 1

    Parameters
    ----------
    weights : Float[Tensor, "..."]          >= 0, any common scale
    mask : Bool[Tensor, "..."] or None      True on real entries
    which : str                             "raw" or "applied"; recorded in the answer
    probs : Float[Tensor, "..."] or None    exact law of the weights; then `n` is the sample size asked about
    n : int or None                         sample size, only with `probs`

    Returns
    -------
    WeightStatistic   in [1, n] for a sample; 0 when every weight is 0 or none is real

    Raises
    ------
    InputError   NaN or negative real weight; `probs` without `n` or `n` without `probs`
    Assumes      nothing; for self-normalized means it is a variance ratio only when weights and values are unrelated
    Gives        scale invariant; n iff the weights are constant; nonincreasing in a cap (S13)
    Numerics     weights of infinity dominate all others and have lost their own order, so only the lower bound 1 is
                 certain and that is the answer; `ess_from_log` gives the exact one
    References   Kish (1965), Survey Sampling, section 11.7

    Examples
    --------
    >>> import torch
    >>> ess(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    ess(raw weights, n=4) = 3.33333
    >>> ess(torch.tensor([1.0, 3.0]), probs=torch.tensor([0.5, 0.5]), n=100)
    ess(raw weights, n=100) = 80
    """
    if (probs is None) != (n is None):
        raise InputError(
            "`n` and `probs` go together",
            found=f"probs {'not ' * (probs is None)}given, n = {n}",
            hint="n is the sample size drawn from the exact law",
        )
    sample = weight_sample(weights, mask, probs)
    size = sample.n if n is None else n
    return WeightStatistic(size * kish_fraction(sample), name="ess", which=which, n=size)


def mean_weight(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
) -> WeightStatistic:
    """Mean weight; its distance from 1 is mass that is missing, capped or masked, or sampling noise.

        E[w] = 1 for raw weights whose behavior covers the target

    Returns
    -------
    WeightStatistic   0 when no entry is real

    Raises
    ------
    InputError   NaN or negative real weight

    Examples
    --------
    >>> import torch
    >>> mean_weight(torch.tensor([0.5, 1.0, 9.0]), torch.tensor([True, True, False]))
    mean_weight(raw weights, n=2) = 0.75
    """
    sample = weight_sample(weights, mask, probs)
    top, scaled = relative_to_largest(sample)
    return WeightStatistic(top * sample.mean(scaled) if top > 0 else 0.0, name="mean_weight", which=which, n=sample.n)


def second_moment(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
) -> WeightStatistic:
    """Second moment d2 = E[w^2] of the weights.

    Returns
    -------
    WeightStatistic   0 when no entry is real; inf where w^2 leaves float64 (its logarithm, `renyi2`, does not)

    Raises
    ------
    InputError   NaN or negative real weight

    Examples
    --------
    >>> import torch
    >>> w, mu = torch.tensor([[6 / 7, 4 / 3], [0.7, 0.3]], dtype=torch.float64)  # weights, and the law they come from
    >>> second_moment(w, probs=mu)
    second_moment(raw weights, n=2) = 1.04762
    """
    sample = weight_sample(weights, mask, probs)
    return WeightStatistic(sample.mean(sample.values.square()), name="second_moment", which=which, n=sample.n)


def chi2(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
    normalized: bool = False,
) -> WeightStatistic:
    """Chi-square divergence of target from behavior.

        chi2 = E[w^2] - 1                    the mean of the weights is known to be 1
        chi2 = E[w^2] / E[w]^2 - 1           normalized=True: the weights are known up to a scale; n / ess - 1

    The two differ when the mean of the weights at hand is not 1: by sampling noise (the first is then unbiased, and may
    be negative), when the behavior misses part of the target, and always for applied weights, whose mean a cap lowers.

    Returns
    -------
    WeightStatistic   0 when no entry is real; -1 (normalized: inf) when every weight is 0; inf on overflow

    Raises
    ------
    InputError   NaN or negative real weight
    Numerics     averages (w - 1)(w + 1), so a divergence of 1e-12 keeps its digits

    Examples
    --------
    >>> import torch
    >>> w, mu = torch.tensor([[6 / 7, 4 / 3], [0.7, 0.3]], dtype=torch.float64)  # weights, and the law they come from
    >>> chi2(w, probs=mu)
    chi2(raw weights, n=2) = 0.047619
    >>> chi2(torch.tensor([2.0, 2.0])), chi2(torch.tensor([2.0, 2.0]), normalized=True)
    (chi2(raw weights, n=2) = 3, chi2_normalized(raw weights, n=2) = 0)
    """
    sample = weight_sample(weights, mask, probs)
    name = "chi2_normalized" if normalized else "chi2"
    if sample.n == 0 or not normalized:
        value = sample.mean((sample.values - 1.0) * (sample.values + 1.0))
    else:
        value = _relative_variance(sample)
    return WeightStatistic(value, name=name, which=which, n=sample.n)


def renyi2(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    which: str = "raw",
    probs: Float[Tensor, "..."] | None = None,
) -> WeightStatistic:
    """Renyi divergence of order 2 of target from behavior, D2 = log E[w^2], in nats.

    Returns
    -------
    WeightStatistic   0 when no entry is real; -inf when every weight is 0; finite for every finite weight

    Raises
    ------
    InputError   NaN or negative real weight

    Examples
    --------
    >>> import torch
    >>> renyi2(torch.tensor([1e300], dtype=torch.float64))
    renyi2(raw weights, n=1) = 1381.55
    """
    sample = weight_sample(weights, mask, probs)
    top, scaled = relative_to_largest(sample)
    if sample.n == 0 or top in (0.0, math.inf):
        value = 0.0 if sample.n == 0 else 2.0 * (math.inf if top > 0 else -math.inf)
    elif 0.5 < top < 2.0:
        value = math.log1p(sample.mean((sample.values - 1.0) * (sample.values + 1.0)))
    else:
        value = 2.0 * math.log(top) + math.log(sample.mean(scaled.square()))
    return WeightStatistic(value, name="renyi2", which=which, n=sample.n)


def _relative_variance(sample: WeightSample) -> float:
    """Var(w) / E[w]^2 >= 0, without the cancellation of E[w^2] / E[w]^2 - 1."""
    top, scaled = relative_to_largest(sample)
    fraction = kish_fraction(sample)
    if top in (0.0, math.inf):
        return 1.0 / fraction - 1.0 if fraction > 0 else math.inf
    return sample.mean((scaled / sample.mean(scaled) - 1.0).square())
