"""W_(k), the product of ratios from the first token through the end of segment k, one number per response and segment."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.weighting.granularity import log_ratios


def segment_end_log_ratios(batch: SegmentedBatch, n_segments: int | None = None) -> Float[Tensor, "B K"]:
    """Log of the stopped products: log W_(k) = sum of token log ratios over all segments <= k.

    Parameters
    ----------
    batch : SegmentedBatch
    n_segments : int | None   K; None takes the batch's. Segments without tokens repeat the product before them

    Returns
    -------
    Float[Tensor, "B K"]   nats; 0 for an empty response; -inf from the first token of target probability 0 on

    Assumes        labels below K (see `SegmentedBatch.n_segments`)
    Gives          E_mu[W_(k) f] = E_pi[f] for f known at the end of segment k (S1); second moments (S9-S12)
    Numerics       summed in float64, never by differences of running sums

    Examples
    --------
    >>> import torch
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 2, dtype=torch.long), mask=torch.ones(1, 2, dtype=torch.bool),
    ...     segment=torch.tensor([[0, 2]]), logp_target=torch.tensor([[-1.0, -1.0]]),
    ...     logp_behavior=torch.tensor([[-2.0, -1.5]]), reward=torch.ones(1), group=torch.tensor([0]))
    >>> segment_end_log_ratios(batch)
    tensor([[1.0000, 1.0000, 1.5000]])
    """
    count = max(batch.n_segments, 0) if n_segments is None else n_segments
    ratio = log_ratios(batch, "token")
    wide = ratio.double()
    label = batch.segment.clamp(min=0, max=max(count - 1, 0))
    totals = wide.new_zeros(batch.batch_size, count)
    if count and wide.shape[1]:
        totals = totals.scatter_add(1, label, wide)
    return totals.cumsum(1).to(ratio.dtype)
