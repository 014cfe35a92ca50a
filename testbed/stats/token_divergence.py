"""Token by token: the three estimates of a Kullback-Leibler divergence, from tokens the *behavior* drew.

With r = target / behavior at the drawn token, d = log r, and E over the behavior's draws (the sampling law, always):

    direction                 quantity               k1         k2            k3
    behavior_to_target        KL(behavior||target)   -d         d^2 / 2       r - 1 - d
    target_to_behavior        KL(target||behavior)   r d        r d^2 / 2     r d - (r - 1)

k1 and k3 are unbiased in both directions, k2 is not (its error is of third order in d); k3 is never negative. To sample
from the target instead, exchange the roles: pass minus the log-ratio and name the policies accordingly. Means, bounds
and gradients are in `divergence.py`.

References: J. Schulman (2020), Approximating KL divergence, joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError

DIRECTIONS = ("behavior_to_target", "target_to_behavior")
SERIES_BELOW = 1e-2  # |d| under which expm1(d) - d is summed as a series: six terms reach rounding


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
    >>> behavior = torch.tensor([0.7, 0.3], dtype=torch.float64)
    >>> round(float((behavior * kl_k1(d)).sum()), 7)
    0.0216009
    >>> round(float((behavior * kl_k1(d, direction="target_to_behavior")).sum()), 7)
    0.0225824
    """
    d, forward = checked_log_ratio(log_ratio, mask, direction)
    if forward:
        return 0.0 - d
    r, d = _ratio(d)
    return r * d


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
    d, forward = checked_log_ratio(log_ratio, mask, direction)
    if forward:
        return d.square() / 2.0
    r, d = _ratio(d)
    return r * d.square() / 2.0


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
    d, forward = checked_log_ratio(log_ratio, mask, direction)
    if forward:
        return _expm1_minus(d)
    # r d - (r - 1) = r (exp(-d) - 1 + d), free of cancellation near 0; r (d - 1) + 1 has a finite limit at -inf
    close = d.abs() < 1.0
    near, far = torch.where(close, d, 0.0), torch.where(close, 1.0, d)
    r, far = _ratio(far)
    return torch.where(close, near.exp() * _expm1_minus(-near), 1.0 + r * (far - 1.0))


def checked_log_ratio(log_ratio: Tensor, mask: Tensor | None, direction: str) -> tuple[Tensor, bool]:
    """Return (log-ratio in float64 with 0 on padding, whether the direction is behavior_to_target)."""
    if direction not in DIRECTIONS:
        raise InputError(f"`direction` must be one of {DIRECTIONS}", found=repr(direction))
    if mask is not None and mask.shape != log_ratio.shape:
        raise InputError(
            f"`mask` must have the shape of `log_ratio`, {tuple(log_ratio.shape)}", found=tuple(mask.shape)
        )
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
    series = 1.0 + x / 7.0
    for k in (6.0, 5.0, 4.0, 3.0):
        series = 1.0 + x / k * series
    return torch.where(small, x.square() / 2.0 * series, torch.expm1(y) - y)


def _ratio(d: Tensor) -> tuple[Tensor, Tensor]:
    """Return (exp(d), d), both 0 where the target's probability is 0: there r times any power of d has the limit 0."""
    dead = torch.isneginf(d)
    finite = torch.where(dead, 0.0, d)
    return torch.where(dead, 0.0, finite.exp()), finite
