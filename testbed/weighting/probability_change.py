"""DPPO: a trust region in the probability itself, and only against moves the advantage asks for.

A ratio of 3 is a large change for a token of probability .3 and none to speak of for one of 1e-6. The gate therefore looks
at the change of the token's own probability, or at the divergence of the two coins "this token or another", and closes only
where the token already moved too far *in the direction its advantage pushes*: up with A > 0, down with A < 0. Rare tokens
are never gated; the kept weight is the ratio truncated at `cap`, and gate and weight are separate decisions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.binary_divergence import binary_kl
from testbed.weighting.limits import at_least, positive
from testbed.weighting.mask import log_slack
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def probability_change(logp_target: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Signed change of the token's probability, target minus behavior, in float64.

    Gives          |change| is the total variation of the two coins "this token or another"

    Examples
    --------
    >>> probability_change(torch.log(torch.tensor([0.75, 1e-6])), torch.log(torch.tensor([0.5, 1e-9])))
    tensor([2.5000e-01, 9.9900e-07], dtype=torch.float64)
    """
    return logp_target.double().exp() - logp_behavior.double().exp()


def total_variation_gate(
    logp_target: Float[Tensor, "B T"],
    logp_behavior: Float[Tensor, "B T"],
    advantage: Float[Tensor, "B T"],
    eps_low: float | int,
    eps_high: float | int,
) -> Bool[Tensor, "B T"]:
    """Gate of DPPO with total variation: False where the probability moved too far the way the advantage pushes.

        closed where  A > 0 and p - q > eps_high,  or  A < 0 and p - q < -eps_low

    Parameters
    ----------
    logp_target, logp_behavior : Float[Tensor, "B T"]    log p and log q, nats
    advantage : Float[Tensor, "B T"]                     only its sign is used; 0 is open
    eps_low, eps_high : float                            >= 0, probability; 1 switches a side off

    Returns
    -------
    Bool[Tensor, "B T"]        True where kept, ties included

    Raises
    ------
    InputError     a bound is negative or NaN
    References     DPPO, arXiv 2602.04879

    Examples
    --------
    >>> p, q = torch.log(torch.tensor([[0.8, 0.8, 1e-3]])), torch.log(torch.tensor([[0.5, 0.5, 1e-9]]))
    >>> total_variation_gate(p, q, torch.tensor([[1.0, -1.0, 1.0]]), 0.2, 0.2)
    tensor([[False,  True,  True]])
    """
    change = probability_change(logp_target, logp_behavior)
    low, high = _limits(eps_low, eps_high, torch.promote_types(logp_target.dtype, logp_behavior.dtype))
    return ~(((advantage > 0) & (change > high)) | ((advantage < 0) & (change < -low)))


def binary_kl_gate(
    logp_target: Float[Tensor, "B T"],
    logp_behavior: Float[Tensor, "B T"],
    advantage: Float[Tensor, "B T"],
    eps_low: float | int,
    eps_high: float | int,
) -> Bool[Tensor, "B T"]:
    """Gate of DPPO with the binary divergence: as `total_variation_gate`, the size of the move measured by KL(q||p).

        closed where  A > 0 and p > q and KL(q||p) > eps_high,  or  A < 0 and p < q and KL(q||p) > eps_low

    Examples
    --------
    >>> p, q = torch.log(torch.tensor([[0.8, 0.8, 0.6]])), torch.log(torch.tensor([[0.5, 0.5, 0.5]]))
    >>> binary_kl_gate(p, q, torch.tensor([[1.0, -1.0, 1.0]]), 0.05, 0.05)
    tensor([[False,  True,  True]])
    """
    moved = binary_kl(logp_behavior, logp_target)
    low, high = _limits(eps_low, eps_high, torch.promote_types(logp_target.dtype, logp_behavior.dtype))
    up = (advantage > 0) & (logp_target > logp_behavior) & (moved > high)
    return ~(up | ((advantage < 0) & (logp_target < logp_behavior) & (moved > low)))


def _limits(eps_low: float | int, eps_high: float | int, dtype: torch.dtype) -> tuple[float, float]:
    """Both bounds with the rounding allowance of the dtype the log-probs came in."""
    low, high = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0)
    return low + log_slack(low, dtype), high + log_slack(high, dtype)


def weigh_dppo_tv(request: Request, eps_low: object, eps_high: object, cap: object) -> Weights:
    """Weight min(ratio, cap) where the probability has not moved too far the way the advantage pushes, else 0."""
    shape = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0)
    batch, log_ratio = request.batch, request.log_ratio()
    keep = total_variation_gate(batch.logp_target.detach(), batch.logp_behavior.detach(), request.signed(), *shape)
    return finish(request, log_ratio, truncate(log_ratio, positive("cap", cap)), gate=keep)


def weigh_dppo_kl(request: Request, eps_low: object, eps_high: object, cap: object) -> Weights:
    """Weight min(ratio, cap) where the token's coin has not moved too far the way the advantage pushes, else 0."""
    shape = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0)
    batch, log_ratio = request.batch, request.log_ratio()
    keep = binary_kl_gate(batch.logp_target.detach(), batch.logp_behavior.detach(), request.signed(), *shape)
    return finish(request, log_ratio, truncate(log_ratio, positive("cap", cap)), gate=keep)
