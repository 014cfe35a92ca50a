"""Token-level estimates of the Kullback-Leibler divergence between behavior and target, from tokens the *behavior* drew.

With r = target / behavior at the drawn token, d = log r, and E over the behavior's draws (the sampling law, always):

    direction                 quantity               k1         k2            k3
    behavior_to_target        KL(behavior||target)   -d         d^2 / 2       r - 1 - d
    target_to_behavior        KL(target||behavior)   r d        r d^2 / 2     r d - (r - 1)

k1 and k3 are unbiased in both directions, k2 is not (its error is of third order in d); k3 is never negative. To sample
from the target instead, exchange the roles: pass minus the log-ratio and name the policies accordingly.

Gradients, when the behavior itself is the policy being trained (d = log reference - log policy): the gradient of k1 has
mean 0, that of k2 is the gradient of KL(policy||reference), that of k3 the gradient of KL(reference||policy).
`kl_straight_through` has k3's value and k2's gradient.

References: J. Schulman (2020), Approximating KL divergence, joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean, masked_sum

DIRECTIONS = ("behavior_to_target", "target_to_behavior")
ESTIMATORS = ("k1", "k2", "k3")
SERIES_BELOW = 1e-2  # |d| under which expm1(d) - d is summed as a series: seven terms reach rounding


class BoundedDivergence(NamedTuple):
    """Per-token estimates between bounds, and the share of real tokens that met one (0 when no token is real)."""

    value: Tensor
    share_bounded: float


def kl_k1(
    log_ratio: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, *, direction: str = "behavior_to_target"
) -> Float[Tensor, "..."]:
    """First estimate of the divergence at each token the behavior drew: -d, or r d.

    Parameters
    ----------
    log_ratio : Float[Tensor, "..."]       nats; target minus behavior at the drawn token
    mask : Bool[Tensor, "..."] or None     True on real tokens
    direction : str                        "behavior_to_target" for KL(behavior||target), or "target_to_behavior"
    Returns
    -------
    Float64[Tensor, "..."]   0 on padding; differentiable
    Raises
    ------
    InputError   NaN or +inf on a real token (the behavior cannot have drawn a token of probability 0)
    Assumes      tokens drawn from the behavior; target_to_behavior: every token the target may emit can be drawn
    Gives        unbiased for the divergence of the two next-token laws; of either sign

    Examples
    --------
    >>> d = torch.log(torch.tensor([6 / 7, 4 / 3], dtype=torch.float64))  # behavior (.7, .3), target (.6, .4)
    >>> behavior = torch.tensor([0.7, 0.3])
    >>> round(float((behavior * kl_k1(d)).sum()), 7)
    0.0216009
    >>> round(float((behavior * kl_k1(d, direction="target_to_behavior")).sum()), 7)
    0.0225824
    """
    d, forward = _checked(log_ratio, mask, direction)
    return 0.0 - d if forward else _ratio_times(d, d)


def kl_k2(
    log_ratio: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, *, direction: str = "behavior_to_target"
) -> Float[Tensor, "..."]:
    """Second estimate at each token the behavior drew: d^2 / 2, or r d^2 / 2. Biased in third order, never negative.

    Arguments, result and errors as `kl_k1`.

    Examples
    --------
    >>> kl_k2(torch.tensor([-2.0, 0.0]))
    tensor([2., 0.], dtype=torch.float64)
    """
    d, forward = _checked(log_ratio, mask, direction)
    return d.square() / 2.0 if forward else _ratio_times(d, d.square() / 2.0)


def kl_k3(
    log_ratio: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, *, direction: str = "behavior_to_target"
) -> Float[Tensor, "..."]:
    """Third estimate at each token the behavior drew: r - 1 - d, or r d - (r - 1). Unbiased and never negative.

    Arguments, result and errors as `kl_k1`.
    Numerics   expm1 in float64, a series near 0: 5e-13 at d = 1e-6, where exp(d) - 1 - d in float32 is below 0

    Examples
    --------
    >>> f"{float(kl_k3(torch.tensor(1e-6))):.4g}"
    '5e-13'
    """
    d, forward = _checked(log_ratio, mask, direction)
    if forward:
        return _expm1_minus(d)
    # r d - (r - 1) = r (expm1(-d) + d); at d < -1 there is no cancellation, and the right-hand side would be 0 * inf
    low = d < -1.0
    near, far = torch.where(low, 0.0, d), torch.where(low, d, -1.0)
    return torch.where(low, _ratio_times(far, far) - torch.expm1(far), near.exp() * _expm1_minus(-near))


def kl_bounded(
    log_ratio: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    estimator: str = "k3",
    direction: str = "behavior_to_target",
    input_bound: float = 20.0,
    output_bound: float = 10.0,
) -> BoundedDivergence:
    """Divergence estimate with log-ratio and result both kept in bounds, for use inside a loss.

        clamp(k(clamp(d, -input_bound, input_bound)), -output_bound, output_bound)

    Parameters
    ----------
    log_ratio, mask, direction             as in `kl_k1`
    estimator : str                        "k1", "k2" or "k3"
    input_bound : float                    > 0, nats; keeps the exponential finite
    output_bound : float                   > 0, nats
    Returns
    -------
    BoundedDivergence   value [...] float64, 0 on padding, gradient 0 where a bound was met; share of real tokens bounded
    Raises
    ------
    InputError   a bound <= 0; as `kl_k1`
    Gives        biased as soon as the share is not 0, which is why the share is part of the answer

    Examples
    --------
    >>> kl_bounded(torch.tensor([49.0, 0.0]))
    BoundedDivergence(value=tensor([10.,  0.], dtype=torch.float64), share_bounded=0.5)
    """
    for name, bound in (("input_bound", input_bound), ("output_bound", output_bound)):
        if not bound > 0:
            raise InputError(f"`{name}` must be > 0", found=bound)
    d, _ = _checked(log_ratio, mask, direction)
    value = _estimate(estimator, d.clamp(-input_bound, input_bound), None, direction)
    met = (d.abs() > input_bound) | (value.abs() > output_bound)
    count = met.numel() if mask is None else int(mask.sum())
    return BoundedDivergence(value.clamp(-output_bound, output_bound), int(met.sum()) / max(count, 1))


def kl_straight_through(
    log_ratio: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """Estimate of KL(behavior||target) with the value of k3 and the gradient of k2.

    Arguments and errors as `kl_k1`. The gradient is right when the behavior is the policy being trained and the target is
    fixed; see the module for what the others differentiate to.

    Examples
    --------
    >>> d = torch.tensor(-0.5, requires_grad=True)
    >>> value = kl_straight_through(d); value.backward()
    >>> round(value.item(), 4), d.grad.item()
    (0.1065, -0.5)
    """
    second = kl_k2(log_ratio, mask)
    return second + (kl_k3(log_ratio, mask) - second).detach()


def kl(
    log_ratio: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    estimator: str = "k3",
    direction: str = "behavior_to_target",
    probs: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, ""]:
    """Mean divergence per real token, over tokens the behavior drew or exactly over the behavior's law `probs`.

    Parameters
    ----------
    log_ratio, mask, direction                as in `kl_k1`
    estimator : str                           "k1", "k2" or "k3"
    probs : Float[Tensor, "..."] or None      the behavior's probability of each entry; None = a sample, equal shares
    Returns
    -------
    Float64[Tensor, ""]   differentiable; 0 when no token is real
    Raises
    ------
    InputError   unknown estimator or direction; NaN on a real token

    Examples
    --------
    >>> d = torch.log(torch.tensor([6 / 7, 4 / 3], dtype=torch.float64))
    >>> round(float(kl(d, probs=torch.tensor([0.7, 0.3], dtype=torch.float64))), 7)
    0.0216009
    """
    value = _estimate(estimator, log_ratio, mask, direction)
    keep = torch.ones_like(value, dtype=torch.bool) if mask is None else mask
    if probs is None:
        return masked_mean(value, keep)
    counted = keep & (probs > 0)
    return masked_sum(torch.where(counted, value, 0.0) * torch.where(counted, probs, 0.0), counted)


def _estimate(estimator: str, log_ratio: Tensor, mask: Tensor | None, direction: str) -> Tensor:
    if estimator == "k1":
        return kl_k1(log_ratio, mask, direction=direction)
    if estimator == "k2":
        return kl_k2(log_ratio, mask, direction=direction)
    if estimator == "k3":
        return kl_k3(log_ratio, mask, direction=direction)
    raise InputError(f"`estimator` must be one of {ESTIMATORS}", found=repr(estimator))


def _checked(log_ratio: Tensor, mask: Tensor | None, direction: str) -> tuple[Tensor, bool]:
    """Return (log-ratio in float64 with 0 on padding, whether the direction is behavior_to_target)."""
    if direction not in DIRECTIONS:
        raise InputError(f"`direction` must be one of {DIRECTIONS}", found=repr(direction))
    if mask is not None and mask.shape != log_ratio.shape:
        raise InputError(f"`mask` must have the shape of `log_ratio`, {tuple(log_ratio.shape)}", found=tuple(mask.shape))
    d = log_ratio.double() if mask is None else torch.where(mask, log_ratio.double(), 0.0)
    bad = d.detach().isnan() | d.detach().isposinf()
    if bool(bad.any()):
        raise InputError(
            "`log_ratio` must be neither NaN nor +inf on a real token",
            found=f"{int(bad.sum())}, first at {tuple(int(i) for i in bad.nonzero()[0])}",
            hint="+inf means a token the behavior cannot draw",
        )
    return d, direction == DIRECTIONS[0]


def _expm1_minus(d: Tensor) -> Tensor:
    """exp(d) - 1 - d >= 0, with full relative precision near 0 and clean gradients on both branches."""
    small = d.abs() < SERIES_BELOW
    x, y = torch.where(small, d, 0.0), torch.where(small, 1.0, d)
    series = 1.0 + x / 8.0
    for k in (7.0, 6.0, 5.0, 4.0, 3.0):
        series = 1.0 + x / k * series
    return torch.where(small, x.square() / 2.0 * series, torch.expm1(y) - y)


def _ratio_times(d: Tensor, factor: Tensor) -> Tensor:
    """exp(d) * factor, with the limit 0 where the target's probability is 0."""
    dead = torch.isneginf(d)
    return torch.where(dead, 0.0, torch.where(dead, 0.0, d).exp() * torch.where(dead, 0.0, factor))
