"""Adaptive importance sampling: one coefficient per batch between no correction and the whole one.

    w = (1 - alpha) + alpha k

is linear in the weight, so the gradient is the same mixture of the uncorrected and the corrected gradient. Its error is
a parabola in alpha, and the best alpha needs the bias of the uncorrected gradient (C13; `estimators.interpolation`).
The published rule replaces that by three diagnostics of the weights, combined by a formula we have not seen; the one
here is a stand-in with the stated monotonicity: alpha rises with the divergence, and falls as the weights become
unreliable. Two of the three are one number: the coefficient of variation of the weights fixes ESS/n = 1 / (1 + CV^2).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean
from testbed.stats.log_weights import ess_from_log
from testbed.stats.token_divergence import kl_k3
from testbed.weighting.granularity import log_ratios
from testbed.weighting.limits import at_least, positive
from testbed.weighting.weights import Request, Weights, finish


def weighed_once(batch: SegmentedBatch, granularity: str) -> Bool[Tensor, "B T"]:
    """Mark one token for each thing that has a ratio of its own: a token, a segment of a response, or a response.

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 3, dtype=torch.int64), mask=torch.tensor([[False, True, True]]),
    ...     segment=torch.tensor([[0, 0, 1]]), logp_target=-torch.ones(1, 3), logp_behavior=-torch.ones(1, 3),
    ...     reward=torch.ones(1), group=torch.tensor([0]))
    >>> [weighed_once(batch, g)[0].tolist() for g in ("segment", "sequence_product")]
    [[False, True, True], [False, True, False]]
    """
    if granularity in ("token", "prefix"):
        return batch.mask
    label = batch.segment if granularity.startswith("segment") else batch.mask.long() - 1
    before = torch.nn.functional.pad(label, (1, 0), value=-1).cummax(1).values[:, :-1]
    return batch.mask & (label > before)


def diagnosed_alpha(log_ratio: Float[Tensor, "B T"], counted: Bool[Tensor, "B T"], kl_scale: float | int) -> float:
    """Coefficient from three diagnostics of a batch's ratios (our reading).

        alpha = ESS/n * (1 - exp(-KL / kl_scale)) / (1 + CV)

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]     nats, target minus behavior
    counted : Bool[Tensor, "B T"]        ratios that count
    kl_scale : float                     nats, > 0: the divergence at which the second factor reaches 1 - 1/e

    Returns
    -------
    float   in [0, 1]; 0 for equal weights, for none, and in the limit of one weight that outweighs all others

    Examples
    --------
    >>> one = torch.ones(1, 2, dtype=torch.bool)
    >>> diagnosed_alpha(torch.zeros(1, 2), one, 0.01)
    0.0
    >>> round(diagnosed_alpha(torch.log(torch.tensor([[1.5, 0.5]])), one, 0.01), 6)  # ESS/n .8, CV .5, KL .1438
    0.533333
    """
    if not bool(counted.any()):
        return 0.0
    reliable = ess_from_log(log_ratio, counted)
    share = float(reliable) / reliable.n
    if share == 0.0:
        return 0.0
    divergence = float(masked_mean(kl_k3(log_ratio, counted), counted))
    return (
        share
        * -math.expm1(-divergence / positive("kl_scale", kl_scale))
        / (1.0 + math.sqrt(max(1.0 / share - 1.0, 0.0)))
    )


def ais_alpha(batch: SegmentedBatch, granularity: str = "token", kl_scale: float | int = 0.01) -> float:
    """Coefficient that rule `ais` takes for this batch with alpha="auto"."""
    return diagnosed_alpha(log_ratios(batch, granularity), weighed_once(batch, granularity), kl_scale)


def interpolated(log_ratio: Float[Tensor, "B T"], alpha: float) -> Float[Tensor, "B T"]:
    """Weight (1 - alpha) + alpha k: exactly 1 at k = 1, k for alpha = 1, and 0 where the target cannot draw the token.

    Examples
    --------
    >>> interpolated(torch.log(torch.tensor([[1.0, 3.0, 0.0]])), 0.25)
    tensor([[1.0000, 1.5000, 0.0000]])
    """
    if alpha == 0.0:
        value = torch.ones_like(log_ratio)
    else:
        near = 1.0 + alpha * torch.expm1(log_ratio.clamp(-0.5, 0.5))
        far = (1.0 - alpha) + (
            log_ratio + math.log(alpha)
        ).exp()  # a tiny alpha may tame a ratio beyond the largest float
        value = torch.where(log_ratio.abs() < 0.5, near, far)
    return torch.where(torch.isneginf(log_ratio), torch.zeros_like(value), value)


def weigh_ais(request: Request, alpha: object, kl_scale: object) -> Weights:
    """Weight (1 - alpha) + alpha k, alpha given or diagnosed from the batch."""
    scale = positive("kl_scale", kl_scale)
    if isinstance(alpha, str):
        if alpha != "auto":
            raise InputError("`alpha` of rule `ais` must be a number in [0, 1] or 'auto'", found=repr(alpha))
        share = ais_alpha(request.batch, request.granularity, scale)
    else:
        share = at_least("alpha", alpha, 0.0, 1.0)
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, interpolated(log_ratio, share))
