"""Masking: keep a ratio that lies in a band, drop the token otherwise.

A mask loses the whole contribution of a dropped token where a cap loses the excess only (C10). Bounds are always on the
ratio target/behavior itself, never on its inverse. Whether a dropped token still counts in the denominator of a loss is
the loss's argument, not the mask's business.

Ties. `<=` keeps. A ratio that equals a bound mathematically (p = .5 against q = .1, bound 5) comes out of two
logarithms, a subtraction and an exponential a few units in the last place off, so the comparison is made once, in log
space, with four units in the last place of slack: a tie in ratio space and a tie in log space are then both kept, in
float32 and in float64, and no ratio is too large to be compared.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.limits import band, log
from testbed.weighting.weights import Request, Weights, finish


def log_slack(log_bound: float, dtype: torch.dtype) -> float:
    """Return the rounding allowance, in nats, of a comparison against a log bound: 4 units in the last place."""
    return 4 * torch.finfo(dtype).eps * max(1.0, abs(log_bound))


def upper_bound(high: float, dtype: torch.dtype) -> float:
    """Largest log ratio that still counts as <= high."""
    edge = log(high)
    return edge if edge in (float("inf"), float("-inf")) else edge + log_slack(edge, dtype)


def lower_bound(low: float, dtype: torch.dtype) -> float:
    """Smallest log ratio that still counts as >= low."""
    edge = log(low)
    return edge if edge in (float("inf"), float("-inf")) else edge - log_slack(edge, dtype)


def mask_band(log_ratio: Float[Tensor, "B T"], low: float | int, high: float | int) -> Bool[Tensor, "B T"]:
    """Gate of a band: True where the ratio is kept.

        keep_t = 1{low <= exp(log_ratio_t) <= high}

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]     nats; target minus behavior
    low, high : float                    0 <= low <= high, on the ratio; low = 0 and high = inf switch a side off

    Returns
    -------
    Bool[Tensor, "B T"]                  True where kept, ties included

    Raises
    ------
    InputError   if low < 0, high <= 0, low > high or either is NaN
    Gives        with w = ratio * keep: bias -E_target[f 1{dropped}], E w^2 <= high P_target(kept) (C10)
    Numerics     compared in log space with 4 units in the last place of slack (see the module's note on ties)
    References   Ring-1T report, arXiv 2510.18855 (two-sided); rl-collapse series (one-sided)

    Examples
    --------
    >>> mask_band(torch.log(torch.tensor([[0.4, 0.5, 5.0, 5.1]])), 0.5, 5.0)
    tensor([[False,  True,  True, False]])
    """
    bottom, top = band(low, high)
    keep = log_ratio <= upper_bound(top, log_ratio.dtype)
    return keep if bottom == 0 else keep & (log_ratio >= lower_bound(bottom, log_ratio.dtype))


def weigh_icepop(request: Request, low: object, high: object) -> Weights:
    """Weight: the ratio where low <= ratio <= high, else 0."""
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, log_ratio.exp(), gate=mask_band(log_ratio, *band(low, high)))


def weigh_mis(request: Request, cap: object) -> Weights:
    """Weight: the ratio where ratio <= cap, else 0."""
    return weigh_icepop(request, *band(0.0, cap, ("low", "cap")))


def weigh_seq_mis(request: Request, low: object, cap: object) -> Weights:
    """Weight: the sequence product where low <= product <= cap, else 0 on the whole response."""
    return weigh_icepop(request, *band(low, cap, ("low", "cap")))


def weigh_geo_mask(request: Request, low: object, high: object) -> Weights:
    """Weight 1 on every token of a response whose geometric mean lies in [low, high], else 0."""
    log_ratio = request.log_ratio()
    keep = mask_band(log_ratio, *band(low, high))
    value = (~torch.isneginf(log_ratio)).to(log_ratio.dtype)
    return finish(request, log_ratio, value, gate=keep, acted=~keep)
