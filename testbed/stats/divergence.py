"""Mean Kullback-Leibler divergence between behavior and target, and the forms that are safe inside a loss.

The per-token estimates `kl_k1`, `kl_k2`, `kl_k3` (defined in `token_divergence.py`, usable from here) are averages over
tokens the *behavior* drew, in either direction of the divergence. Gradients, when the behavior itself is the policy
being trained (d = log reference - log policy): the gradient of k1 has mean 0, that of k2 is the gradient of
KL(policy||reference), that of k3 the gradient of KL(reference||policy). `kl_straight_through` has k3's value and k2's
gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean, masked_sum
from testbed.stats.token_divergence import checked_log_ratio, kl_k1, kl_k2, kl_k3

__all__ = ["BoundedDivergence", "kl", "kl_bounded", "kl_k1", "kl_k2", "kl_k3", "kl_straight_through"]

ESTIMATORS = ("k1", "k2", "k3")


class BoundedDivergence(NamedTuple):
    """Per-token estimates between bounds, and the share of real tokens that met one (0 when no token is real)."""

    value: Tensor
    share_bounded: float


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
    BoundedDivergence   float64, 0 on padding, gradient 0 where a bound was met; share of real tokens bounded

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
    d, _ = checked_log_ratio(log_ratio, mask, direction)
    value = _estimate(estimator, d.clamp(-input_bound, input_bound), None, direction)
    met = (d.abs() > input_bound) | (value.abs() > output_bound)
    count = met.numel() if mask is None else int(mask.sum())
    return BoundedDivergence(value.clamp(-output_bound, output_bound), int(met.sum()) / max(count, 1))


def kl_straight_through(
    log_ratio: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """Estimate of KL(behavior||target) with the value of k3 and the gradient of k2.

    Arguments and errors as `kl_k1`. The gradient is right when the behavior is the policy being trained and the
    target is fixed; see the module for what the others differentiate to.

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
