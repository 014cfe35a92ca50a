"""PPO's clip and its relatives: rules in which the sign of the advantage decides which side is cut.

The surrogate min(r A, clip(r, 1-eps_low, 1+eps_high) A) has gradient A r grad log target where it is *active* and 0
elsewhere, so the weight is r * 1{active}. Clipping is one-sided for either sign: with A < 0 nothing bounds the loss as
r grows (r = 10, A = -1 costs 10); `dual_clip` does. Leaving the interval is therefore not the same as losing the
gradient: r = 1.3, A = -1 is outside and active.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.granularity import log_ratios
from testbed.weighting.limits import above, at_least, interval, positive
from testbed.weighting.mask import lower_bound, upper_bound
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def clip_gate(
    log_ratio: Float[Tensor, "B T"],
    advantage: Float[Tensor, "B T"],
    eps_low: float | int,
    eps_high: float | int,
    dual: float | int = math.inf,
) -> Bool[Tensor, "B T"]:
    """Gate of the clipped surrogate: True where it has a gradient.

        inactive where  A > 0 and r > 1 + eps_high,  A < 0 and r < 1 - eps_low,  A < 0 and r > dual

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]     nats
    advantage : Float[Tensor, "B T"]     only its sign is used; 0 counts as active
    eps_low, eps_high : float            >= 0; eps_low >= 1 switches the lower side off
    dual : float                         > 1; inf is plain PPO

    Returns
    -------
    Bool[Tensor, "B T"]                  strict at the edges: r = 1 + eps_high is active

    Raises
    ------
    InputError   if an eps is negative, dual <= 1, or any is NaN
    Numerics     log space, ties kept as in `mask_band`
    References   Schulman et al. 2017, arXiv 1707.06347 eq. 7; dual clip: Ye et al. 2020, arXiv 1912.09729

    Examples
    --------
    >>> r = torch.log(torch.tensor([[1.2, 1.3, 1.3, 0.7]]))
    >>> clip_gate(r, torch.tensor([[1.0, 1.0, -1.0, -1.0]]), 0.2, 0.2)
    tensor([[ True, False,  True, False]])
    """
    low, high = interval(eps_low, eps_high)
    over = upper_bound(above("dual", dual, 1.0), log_ratio.dtype)
    too_high = (advantage > 0) & (log_ratio > upper_bound(high, log_ratio.dtype))
    cut = (log_ratio < lower_bound(low, log_ratio.dtype)) | (log_ratio > over)
    return ~(too_high | ((advantage < 0) & cut))


def clip_objective(
    ratio: Float[Tensor, "B T"],
    advantage: Float[Tensor, "B T"],
    active: Bool[Tensor, "B T"],
    eps_low: float | int,
    eps_high: float | int,
    dual: float | int = math.inf,
) -> Float[Tensor, "B T"]:
    """Value of the clipped surrogate, to be maximized: min(r A, clip(r) A), for A < 0 not below dual * A.

    Unbounded below for A < 0 unless `dual` is finite. 0 where A = 0, even at r = inf.

    Examples
    --------
    >>> r, a = torch.tensor([[10.0, 10.0]]), torch.tensor([[1.0, -1.0]])
    >>> clip_objective(r, a, clip_gate(r.log(), a, 0.2, 0.2), 0.2, 0.2)
    tensor([[  1.2000, -10.0000]])
    """
    low, high = interval(eps_low, eps_high)
    edge = torch.full_like(ratio, low).masked_fill_(advantage > 0, high)
    if dual < math.inf:
        edge.masked_fill_((advantage < 0) & (ratio > 1.0), float(dual))
    factor = torch.where(active, ratio, edge)
    return torch.where(advantage == 0, torch.zeros_like(factor), factor) * advantage


def weigh_dual_clip(request: Request, eps_low: object, eps_high: object, dual: object) -> Weights:
    """Weight: the ratio where PPO's surrogate has a gradient, also cut at r > dual for a negative advantage."""
    log_ratio, advantage = request.log_ratio(), request.signed()
    shape = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0), above("dual", dual, 1.0)
    active = clip_gate(log_ratio, advantage, *shape)
    ratio = log_ratio.exp()
    objective = clip_objective(ratio, advantage, active, *shape)
    return finish(request, log_ratio, ratio, gate=active, objective=objective)


def weigh_ppo_clip(request: Request, eps_low: object, eps_high: object) -> Weights:
    """Weight: the ratio where PPO's surrogate has a gradient, else 0."""
    return weigh_dual_clip(request, eps_low, eps_high, math.inf)


def weigh_gspo(request: Request, eps_low: object, eps_high: object) -> Weights:
    """Weight: the geometric mean s of the response where PPO's surrogate in s has a gradient, on every token."""
    return weigh_ppo_clip(request, eps_low, eps_high)


def weigh_decoupled_ppo(request: Request, cap: object, eps_low: object, eps_high: object) -> Weights:
    """Weight min(k, cap) r 1{active}, k = proximal/behavior, r = target/proximal; raw is k r = target/behavior.

    Where the cap does not bind, k r is one exponential: k may underflow where r overflows and k r is ordinary.
    """
    batch, advantage = request.batch, request.signed()
    batch.require("logp_proximal", "decoupled_ppo")
    drift = log_ratios(batch, request.granularity, numerator="target", denominator="proximal")
    mismatch = log_ratios(batch, request.granularity, numerator="proximal", denominator="behavior")
    log_ratio = request.log_ratio()
    bound, shape = positive("cap", cap), (at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0))
    capped = mismatch > upper_bound(bound, mismatch.dtype)
    active = clip_gate(drift, advantage, *shape)
    factor = truncate(mismatch, bound)
    value = torch.where(capped, drift.exp() * factor, log_ratio.exp())
    kept = torch.where(advantage != 0, value, torch.zeros_like(value)) * advantage
    edges = clip_objective(torch.ones_like(value), advantage, torch.zeros_like(active), *shape)
    objective = torch.where(active, kept, edges * factor)
    return finish(request, log_ratio, value, gate=active, objective=objective)
