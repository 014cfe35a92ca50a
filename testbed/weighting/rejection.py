"""Rejection: gates that leave the kept tokens' weight alone.

The weight of a kept token is 1, or the token ratio with `weight="ratio"`; what is decided here is who is kept. Statistics
of one token, all functions of the log ratio l = log target/behavior, are named after the estimates of KL(behavior||target)
they come from:

    k1: l itself (the estimate is -l)     k2: l^2 / 2     k3: e^l - 1 - l

Bounds of k1 are written on the *ratio* e^l, never on its inverse: with [.5, 5] a ratio of 4 is kept. A response is judged
by the mean, sum or max of its tokens' statistics and is kept or dropped as a whole. Whether dropped tokens still count in
the denominator of a loss is the loss's argument.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.token_divergence import kl_k2, kl_k3
from testbed.weighting.limits import at_least, band, nearest, positive
from testbed.weighting.mask import log_slack, lower_bound, mask_band
from testbed.weighting.weights import Request, Weights, finish

AGGREGATES = ("mean", "sum", "max")
KEPT_WEIGHTS = ("one", "ratio")
_LARGEST = 1e300  # as in log_ratios: no sum of log ratios can become inf - inf


def over_response(
    statistic: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], aggregate: str = "mean"
) -> Float[Tensor, "B 1"]:
    """Mean, sum or max of a statistic over each response's real tokens, in float64.

    Parameters
    ----------
    statistic : Float[Tensor, "B T"]     anything on padding
    mask : Bool[Tensor, "B T"]
    aggregate : str                      mean, sum or max

    Returns
    -------
    Float64[Tensor, "B 1"]               for an empty response 0, and -inf as a max

    Raises
    ------
    InputError   an unknown word

    Examples
    --------
    >>> over_response(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[2.]], dtype=torch.float64)
    """
    if aggregate not in AGGREGATES:
        raise InputError("`aggregate` is unknown", found=repr(aggregate), hint=nearest(aggregate, AGGREGATES))
    wide = statistic.double().clamp(max=_LARGEST)
    if aggregate == "max":
        lowest = torch.full((wide.shape[0], 1), -torch.inf, dtype=wide.dtype, device=wide.device)
        return torch.cat([lowest, wide.masked_fill(~mask, -torch.inf)], dim=1).amax(1, keepdim=True)
    total = wide.masked_fill(~mask, 0.0).sum(1, keepdim=True)
    return total if aggregate == "sum" else total / mask.sum(1, keepdim=True).clamp(min=1)


def veto_gate(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], threshold: float | int
) -> Bool[Tensor, "B 1"]:
    """Gate of the token veto: False where a single token's ratio is below the threshold.

        keep = 1{min_t log_ratio_t >= log threshold}

    Only the low side vetoes: a token the target finds far likelier than the behavior did is let pass.

    Examples
    --------
    >>> veto_gate(torch.log(torch.tensor([[1.0, 1e-5], [1.0, 1e5]])), torch.ones(2, 2, dtype=torch.bool), 1e-4)
    tensor([[False],
            [ True]])
    """
    edge = lower_bound(at_least("threshold", threshold, 0.0, 1.0), log_ratio.dtype)
    return ((log_ratio >= edge) | ~mask).all(1, keepdim=True)


def off_policy_gate(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], advantage: Float[Tensor, "B T"], delta: float | int
) -> Bool[Tensor, "B T"]:
    """Gate of off-policy masking: False on tokens of negative advantage in a response the target has moved away from.

        closed where  A_t < 0 and mean_s(log behavior_s - log target_s) > delta

    The sign: the mean is that of *minus* the log ratio, so it is positive where the target finds the response less likely than
    the behavior did. A response it finds likelier is never masked, however far off.

    Examples
    --------
    >>> moved = torch.tensor([[-0.2, -0.2], [0.2, 0.2], [-0.2, -0.2]])
    >>> down = torch.tensor([[-1.0], [-1.0], [1.0]]).expand(3, 2)
    >>> off_policy_gate(moved, torch.ones(3, 2, dtype=torch.bool), down, 1e-4).all(1)
    tensor([False,  True,  True])
    """
    bound = at_least("delta", delta, 0.0)
    away = -over_response(log_ratio, mask)
    return ~((advantage < 0) & (away > bound + log_slack(bound, log_ratio.dtype)))


def _finish(request: Request, keep: Bool[Tensor, "B _"], weight: object) -> Weights:
    """Weight 1, or the token ratio, on what is kept; an impossible token weighs nothing."""
    if weight not in KEPT_WEIGHTS:
        raise InputError("`weight` must be 'one' or 'ratio'", found=repr(weight), hint=nearest(weight, KEPT_WEIGHTS))
    log_ratio = request.log_ratio()
    gate = keep.expand(log_ratio.shape)
    if weight == "ratio":
        return finish(request, log_ratio, log_ratio.exp(), gate=gate)
    value = (~torch.isneginf(log_ratio)).to(log_ratio.dtype)
    return finish(request, log_ratio, value, gate=gate, acted=~gate)


def _at_most(statistic: Float[Tensor, "B _"], threshold: object, dtype: torch.dtype) -> Bool[Tensor, "B _"]:
    bound = positive("threshold", threshold)
    return statistic <= bound + log_slack(bound, dtype)


def weigh_k1_token(request: Request, low: object, high: object, weight: object) -> Weights:
    """Keep tokens whose ratio lies in [low, high]."""
    return _finish(request, mask_band(request.log_ratio(), *band(low, high)), weight)


def weigh_k2_token(request: Request, threshold: object, weight: object) -> Weights:
    """Keep tokens with l^2 / 2 <= threshold."""
    log_ratio = request.log_ratio()
    return _finish(request, _at_most(kl_k2(log_ratio), threshold, log_ratio.dtype), weight)


def weigh_k3_token(request: Request, threshold: object, weight: object) -> Weights:
    """Keep tokens with e^l - 1 - l <= threshold."""
    log_ratio = request.log_ratio()
    return _finish(request, _at_most(kl_k3(log_ratio), threshold, log_ratio.dtype), weight)


def weigh_k1_sequence(request: Request, low: object, high: object, aggregate: object, weight: object) -> Weights:
    """Keep responses whose aggregated log ratio, exponentiated, lies in [low, high]."""
    log_ratio = request.log_ratio()
    judged = over_response(log_ratio, request.batch.mask, str(aggregate))
    judged = judged.clamp(max=torch.finfo(log_ratio.dtype).max).to(log_ratio.dtype)
    return _finish(request, mask_band(judged, *band(low, high)), weight)


def weigh_k2_sequence(request: Request, threshold: object, aggregate: object, weight: object) -> Weights:
    """Keep responses whose aggregated l^2 / 2 is at most the threshold."""
    log_ratio = request.log_ratio()
    judged = over_response(kl_k2(log_ratio), request.batch.mask, str(aggregate))
    return _finish(request, _at_most(judged, threshold, log_ratio.dtype), weight)


def weigh_k3_sequence(request: Request, threshold: object, aggregate: object, weight: object) -> Weights:
    """Keep responses whose aggregated e^l - 1 - l is at most the threshold."""
    log_ratio = request.log_ratio()
    judged = over_response(kl_k3(log_ratio), request.batch.mask, str(aggregate))
    return _finish(request, _at_most(judged, threshold, log_ratio.dtype), weight)


def weigh_veto(request: Request, threshold: object, weight: object) -> Weights:
    """Keep responses without a token whose ratio is below the threshold."""
    limit = at_least("threshold", threshold, 0.0, 1.0)
    return _finish(request, veto_gate(request.log_ratio(), request.batch.mask, limit), weight)


def weigh_opsm(request: Request, delta: object, weight: object) -> Weights:
    """Keep responses unless their advantage is negative and the target has moved away from them by more than delta."""
    limit = at_least("delta", delta, 0.0)
    return _finish(request, off_policy_gate(request.log_ratio(), request.batch.mask, request.signed(), limit), weight)
