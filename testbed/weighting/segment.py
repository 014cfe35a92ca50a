"""SPIRE: the product through the end of a token's segment, truncated segment by segment.

A response written by several behaviors is cut where the behavior changes. W_(k), the product through the end of segment
k, is the weight under which everything decided up to that boundary has the target's law (S1); its second moment grows
by one factor per segment (S9, S10), so each segment has a cap of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.weighting.limits import positive
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def spire_caps(batch: SegmentedBatch, cap: object) -> float | Float[Tensor, "B T"]:
    """Cap of each token's segment.

    Parameters
    ----------
    cap : float > 0 for every segment, "none", or a sequence with one float per segment label 0 .. K-1

    Returns
    -------
    float or Float[Tensor, "B T"]        1 on padding

    Raises
    ------
    InputError   a cap <= 0 or NaN; any other word than "none"; fewer caps than segments (more are allowed: a slice of
                 a batch may lack the last segments)

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
        if cap == "auto":
            raise InputError(
                "`cap` of rule `spire` must be given", found="'auto'", hint="a float, one float per segment, or 'none'"
            )
        raise InputError("`cap` of rule `spire` must be a number, a sequence or 'none'", found=repr(cap))
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
