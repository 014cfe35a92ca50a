"""Weights of whole responses that taper off: bounded for every product, with different shapes for the two signs.

A response with a negative advantage is pushed away from. Off-policy nothing stops that push once the target no longer
writes the response, unless the weight falls with the product K = target/behavior. Both rules do this; neither is
unbiased, and neither is meant to be: they decide how far a stale response may still be trusted.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.limits import at_least, positive
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def gamma_kernel(
    log_product: Float[Tensor, "B T"],
    positive_side: Bool[Tensor, "B T"],
    shape: tuple[float, float],
    rate: tuple[float, float],
) -> Float[Tensor, "B T"]:
    """Weight of VESPO: a gamma density in the product, scaled to 1 at K = 1.

        phi(K) = e^lam K^k e^(-lam K),   largest at K = k/lam

    Parameters
    ----------
    log_product : Float[Tensor, "B T"]     nats
    positive_side : Bool[Tensor, "B T"]    True: first k and lam, False: second
    shape, rate : (float, float)           k > 0 and lam >= 0, for A >= 0 and A < 0; lam = 0 leaves K^k

    Returns
    -------
    Float[Tensor, "B T"]   dimensionless; 0 in both tails where lam > 0
    Numerics     one exponential of k log K - lam (K - 1), so no factor can overflow while another vanishes

    Examples
    --------
    >>> K = torch.log(torch.tensor([[1.0, 2.0, 2.0, 1e30]]))
    >>> gamma_kernel(K, torch.tensor([[True, True, False, True]]), (2.0, 3.0), (3.0, 2.0))
    tensor([[1.0000, 0.1991, 1.0827, 0.0000]])
    """
    first = positive_side.to(log_product.dtype)
    k = shape[0] * first + shape[1] * (1.0 - first)
    lam = rate[0] * first + rate[1] * (1.0 - first)
    taper = torch.where(lam > 0, lam * torch.expm1(log_product), torch.zeros_like(lam))
    return (k * log_product - taper).exp()


def weigh_vespo(request: Request, k_pos: object, lam_pos: object, k_neg: object, lam_neg: object) -> Weights:
    """Weight: the gamma kernel of the response's product, (k_pos, lam_pos) for A >= 0 and (k_neg, lam_neg) for A < 0."""
    log_ratio = request.log_ratio()
    shape = positive("k_pos", k_pos), positive("k_neg", k_neg)
    rate = at_least("lam_pos", lam_pos, 0.0), at_least("lam_neg", lam_neg, 0.0)
    return finish(request, log_ratio, gamma_kernel(log_ratio, request.signed() >= 0, shape, rate))


def weigh_topr(request: Request, cap: object) -> Weights:
    """Weight 1 where A >= 0 (0 if the target cannot write the response), min(product, cap) where A < 0."""
    log_ratio = request.log_ratio()
    plain = (~torch.isneginf(log_ratio)).to(log_ratio.dtype)
    value = torch.where(request.signed() >= 0, plain, truncate(log_ratio, positive("cap", cap)))
    return finish(request, log_ratio, value)
