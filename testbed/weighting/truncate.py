"""Truncation (a one-sided cap) and clamping (both sides), and the rules built on them alone.

A cap is the only operator here that bounds the second moment without discarding a token: w = min(rho, C) has
E w^2 <= C and bias -E[(rho - C)+ f] (C5, O7). A clamp also *raises* small weights, which is another operator with
another bias (C8); frameworks that call it truncated importance sampling are the reason it has its own name here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.weighting.limits import band, interval, log, positive
from testbed.weighting.weights import Request, Weights, finish


def truncate(log_ratio: Float[Tensor, "B T"], cap: float | int | Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Ratio capped from above.

        w_t = min(exp(log_ratio_t), cap)

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]           nats; target minus behavior
    cap : float or Float[Tensor, "B T"]        > 0, dimensionless; inf leaves the ratio as it is

    Returns
    -------
    Float[Tensor, "B T"]                       dimensionless, <= cap in the working dtype; exp(0) = 1 on padding

    Raises
    ------
    InputError   if a cap is <= 0 or NaN
    Assumes      nothing; unbiased only where the cap does not bind
    Gives        E w^2 <= cap (C5); bias -E[(ratio - cap)+ f] (O7)
    Numerics     the exponent stops one nat above log cap, so that neither value nor gradient can overflow
    References   Ionides 2008, J. Comput. Graph. Stat. 17:295

    Examples
    --------
    >>> truncate(torch.tensor([[0.0, 1e4, float("-inf")]]), cap=2.0)
    tensor([[1., 2., 0.]])
    """
    if isinstance(cap, Tensor):
        positive("cap", float(cap.min()) if cap.numel() else 1.0)
        bound = cap.to(log_ratio.dtype)
        return torch.minimum(torch.minimum(log_ratio, bound.log() + 1.0).exp(), bound)
    top = positive("cap", cap)
    return log_ratio.clamp(max=log(top) + 1.0).exp().clamp(max=top)


def clamp(log_ratio: Float[Tensor, "B T"], low: float | int, high: float | int) -> Float[Tensor, "B T"]:
    """Ratio moved into a band from both sides, except that an impossible token keeps weight 0.

        w_t = min(max(exp(log_ratio_t), low), high);  0 where log_ratio_t = -inf

    Raises
    ------
    InputError   if low < 0, high <= 0, low > high or either is NaN
    Gives        E w - 1 = E(low - rho)+ - E(rho - high)+ (C8)

    Examples
    --------
    >>> clamp(torch.log(torch.tensor([[0.2, 1.0, 7.0, 0.0]])), 0.5, 5.0)
    tensor([[0.5000, 1.0000, 5.0000, 0.0000]])
    """
    bottom, top = band(low, high)
    raised = truncate(log_ratio, top).clamp(min=bottom)
    if bottom == 0:
        return raised
    return torch.where(torch.isneginf(log_ratio), torch.zeros((), dtype=raised.dtype, device=raised.device), raised)


def weigh_tis(request: Request, cap: object) -> Weights:
    """Weight min(ratio, cap)."""
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, truncate(log_ratio, positive("cap", cap)))


def weigh_seq_tis(request: Request, cap: object) -> Weights:
    """Weight min(sequence product, cap), the same on every token of the response."""
    return weigh_tis(request, cap)


def weigh_band(request: Request, low: object, high: object) -> Weights:
    """Weight: the ratio clamped to [low, high]."""
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, clamp(log_ratio, *band(low, high)))


def weigh_cispo(request: Request, eps_low: object, eps_high: object) -> Weights:
    """Weight: the ratio clamped to [1 - eps_low, 1 + eps_high]; every token keeps a gradient."""
    return weigh_band(request, *interval(eps_low, eps_high))
