"""SPIRE: the product through the end of a token's segment, truncated segment by segment.

A response written by several behaviors is cut where the behavior changes. W_(k), the product through the end of segment
k, is the weight under which everything decided up to that boundary has the target's law (S1); its second moment grows
by one factor per segment (S9, S10), so each segment has a cap of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.weighting.limits import positive
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.segment_ends import segment_end_log_ratios
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def auto_caps(batch: SegmentedBatch) -> Float[Tensor, " K"]:
    """Caps that the batch's own weights call for: O1 on W_(k) of its responses, segment by segment.

        c_k = 1 + (n-1) mean over responses of (W_(k) - c_k)+,   n = number of responses with tokens

    Returns
    -------
    Float[Tensor, " K"]   float64, >= 1; 1 for a segment that no token belongs to

    Assumes        responses drawn from the behaviors: an enumerated law has probabilities, give `optimal_cap` those
    Gives          1 for a single response and for on-policy data. A response that ended before segment k counts with its
                   last product: without it the mean of W_(k) would not be 1 (S1)
    Numerics       products that overflow count as the largest number of the batch's dtype over e, so a cap stays finite

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(4, 2, dtype=torch.int64), mask=torch.tensor([[True, True]] * 3 + [[True, False]]),
    ...     segment=torch.tensor([[0, 1]] * 4), logp_target=torch.log(torch.tensor([[0.1, 0.5]] * 3 + [[0.9, 0.5]])),
    ...     logp_behavior=torch.log(torch.full((4, 2), 0.5)), reward=torch.ones(4), group=torch.zeros(4, dtype=torch.int64))
    >>> auto_caps(batch)  # weights .2, .2, .2, 1.8
    tensor([1.3429, 1.3429], dtype=torch.float64)
    """
    labels, caps, _ = _caps_of_labels(batch)
    table = torch.ones(batch.n_segments, dtype=torch.float64)
    table[labels.cpu()] = caps
    return table


def _caps_of_labels(
    batch: SegmentedBatch,
) -> tuple[Int64[Tensor, " L"], Float[Tensor, " L"], Int64[Tensor, "B T"]]:
    """Segment labels in use, their caps, and the place of each token's label among them (0 on padding).

    Labels may be policy versions in the thousands; the table of products has one column for each that occurs.
    """
    labels, place = torch.unique(batch.segment[batch.mask], return_inverse=True)
    dense = torch.full_like(batch.segment, -1)
    dense[batch.mask] = place
    logs = segment_end_log_ratios(batch.replaced(segment=dense), labels.numel())[batch.mask.any(1)].double()
    largest = math.log(torch.finfo(batch.logp_target.dtype).max) - 1.0
    caps = [float(optimal_cap(products)) for products in logs.clamp(max=largest).exp().unbind(1)]
    return labels, torch.tensor(caps, dtype=torch.float64), dense.clamp(min=0)


def spire_caps(batch: SegmentedBatch, cap: object) -> float | Float[Tensor, "B T"]:
    """Cap of each token's segment.

    Parameters
    ----------
    cap : "auto" (see `auto_caps`), "none", a float > 0 for every segment, or a sequence with one float per segment label
          0 .. K-1

    Returns
    -------
    float or Float[Tensor, "B T"]        1 on padding

    Raises
    ------
    InputError   a cap <= 0 or NaN; any other word; fewer caps than segments (more are allowed: a slice of a batch may
                 lack the last segments)

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 2, dtype=torch.int64), mask=torch.ones(1, 2, dtype=torch.bool),
    ...     segment=torch.tensor([[0, 1]]), logp_target=-torch.ones(1, 2), logp_behavior=-torch.ones(1, 2),
    ...     reward=torch.ones(1), group=torch.tensor([0]))
    >>> spire_caps(batch, [5.0, 2.0])
    tensor([[5., 2.]])
    """
    if isinstance(cap, str):
        if cap == "none":
            return float("inf")
        if cap != "auto":
            raise InputError("`cap` of rule `spire` must be a number, a sequence, 'auto' or 'none'", found=repr(cap))
        _, caps, place = _caps_of_labels(batch)
        table = batch.logp_target.new_tensor(caps.tolist() or [1.0], requires_grad=False)
        return torch.where(batch.mask, table[place], torch.ones_like(table[0]))
    if isinstance(cap, Tensor):
        cap = cap.tolist()
    if not isinstance(cap, Sequence):
        return positive("cap", cap)
    values = [positive(f"cap[{k}]", c) for k, c in enumerate(cap)]
    if len(values) < batch.n_segments:
        raise InputError("`cap` needs one value per segment", found=f"{len(values)} for {batch.n_segments} segments")
    table = batch.logp_target.new_tensor(values or [1.0], requires_grad=False)
    return torch.where(batch.mask, table[batch.segment.clamp(min=0)], torch.ones_like(table[0]))


def weigh_spire(request: Request, cap: object) -> Weights:
    """Weight min(W_(k), cap_k) on every token of segment k."""
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, truncate(log_ratio, spire_caps(request.batch, cap)))
