"""Weights that read the tokens before t: minimum, running geometric mean, and V-trace's truncated product.

All three replace the prefix product prod_{s<=t} rho_s, which corrects the law of the state a token was drawn in, by
something that cannot explode; their raw ratio is therefore that product. None is unbiased.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.granularity import log_ratios
from testbed.weighting.limits import at_least, log, positive
from testbed.weighting.weights import Request, Weights, apart, finish


def _before(x: Float[Tensor, "B T"], start: float) -> Float[Tensor, "B T"]:
    """Shift one position to the right: entry t holds what stood at t - 1."""
    return torch.cat([torch.full_like(x[:, :1], start), x[:, :-1]], dim=1)


def minpro(log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Log of the token ratio times the smallest ratio before it.

        w_t = rho_t * min_{s<t} rho_s,  empty minimum 1

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]     nats per token; 0 on padding
    mask : Bool[Tensor, "B T"]           padding takes no part in the minimum

    Returns
    -------
    Float[Tensor, "B T"]                 nats
    References   MinPRO, arXiv 2601.22718; the equation is a reading of its abstract

    Examples
    --------
    >>> minpro(torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[True, True, True]]))
    tensor([[ 1., -1.,  1.]])
    """
    if log_ratio.numel() == 0:
        return log_ratio
    seen = log_ratio.masked_fill(~mask, torch.inf).cummin(1).values
    least = _before(seen, torch.inf)
    return log_ratio + least.masked_fill(torch.isposinf(least), 0.0)


def pnpo(log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Log of the running geometric mean of the token ratios.

        w_t = (prod_{s<=t} rho_s)^(1/t),  t counted over real tokens

    Returns
    -------
    Float[Tensor, "B T"]                 nats; summed in float64
    References   PNPO, arXiv 2608.01418

    Examples
    --------
    >>> pnpo(torch.tensor([[1.0, -2.0, 4.0]]), torch.tensor([[True, True, True]]))
    tensor([[ 1.0000, -0.5000,  1.0000]])
    """
    return (log_ratio.cumsum(1, dtype=torch.float64) / mask.cumsum(1).clamp(min=1)).to(log_ratio.dtype)


def vtrace(
    log_ratio: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    rho_cap: float | int = 1.0,
    c_cap: float | int = 1.0,
    lam: float | int = 1.0,
) -> Float[Tensor, "B T"]:
    """Log coefficient of the temporal-difference error at t in V-trace's target for the first state.

        w_t = min(rho_cap, rho_t) * prod_{s<t} lam * min(c_cap, rho_s)

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]     nats per token; 0 on padding
    mask : Bool[Tensor, "B T"]           padding contributes no factor (no lam either)
    rho_cap, c_cap : float               > 0; rho_cap decides the fixed point, c_cap the speed
    lam : float                          in [0, 1]

    Returns
    -------
    Float[Tensor, "B T"]                 nats; -inf where lam = 0 leaves no path or a ratio is 0
    References   Espeholt et al. 2018, arXiv 1802.01561 eq. 1 and remark 2

    Examples
    --------
    >>> vtrace(torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[True, True, True]]))
    tensor([[ 0., -2., -2.]])
    """
    step = log(at_least("lam", lam, 0.0, 1.0))
    top = log(positive("rho_cap", rho_cap))
    trace = (log_ratio.clamp(max=log(positive("c_cap", c_cap))) + step).masked_fill(~mask, 0.0)
    path = _before(trace.cumsum(1, dtype=torch.float64), 0.0)
    return (log_ratio.clamp(max=top) + path).to(log_ratio.dtype)


def _finish(request: Request, log_value: Float[Tensor, "B T"]) -> Weights:
    log_ratio = request.log_ratio()
    log_value = log_value.masked_fill(~request.batch.mask, 0.0)
    return finish(request, log_ratio, log_value.exp(), acted=apart(log_value, log_ratio))


def weigh_minpro(request: Request) -> Weights:
    """Weight rho_t times the smallest ratio before t."""
    return _finish(request, minpro(log_ratios(request.batch, "token"), request.batch.mask))


def weigh_pnpo(request: Request) -> Weights:
    """Weight: the geometric mean of the ratios up to t."""
    return _finish(request, pnpo(log_ratios(request.batch, "token"), request.batch.mask))


def weigh_vtrace(request: Request, rho_cap: object, c_cap: object, lam: object) -> Weights:
    """Weight min(rho_cap, rho_t) times the truncated traces before t."""
    limits = positive("rho_cap", rho_cap), positive("c_cap", c_cap), at_least("lam", lam, 0.0, 1.0)
    return _finish(request, vtrace(log_ratios(request.batch, "token"), request.batch.mask, *limits))
