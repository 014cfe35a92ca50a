"""A batch whose stopped weights are known numbers, for what SPIRE's automatic cap does with a batch's own weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import brentq

from testbed.core.batch import SegmentedBatch
from testbed.weighting.rules import weigh

COPIES = 4  # of every weight


def two_segment_batch(weights: Sequence[float]) -> tuple[SegmentedBatch, np.ndarray]:
    """Responses of one token per segment: W_(1) runs over the weights fast, the second factor slowly.

    Returns
    -------
    SegmentedBatch, array [B, 2] of W_(1) and W_(2)

    Examples
    --------
    >>> two_segment_batch([0.5, 1.5])[1][:2].tolist()
    [[0.5, 0.25], [1.5, 0.75]]
    """
    first = np.tile(np.asarray(weights, dtype=float), COPIES)
    ratios = np.stack([first, np.repeat(np.asarray(weights, dtype=float), COPIES)], 1)
    size = len(first)
    behavior = np.log(np.minimum(0.5, 0.5 / ratios))
    batch = SegmentedBatch(
        tokens=torch.zeros(size, 2, dtype=torch.int64),
        mask=torch.ones(size, 2, dtype=torch.bool),
        segment=torch.tensor([[0, 1]]).expand(size, 2),
        logp_target=torch.from_numpy(behavior + np.log(ratios)),
        logp_behavior=torch.from_numpy(behavior),
        reward=torch.ones(size, dtype=torch.float64),
        group=torch.zeros(size, dtype=torch.int64),
    )
    return batch, ratios.cumprod(1)


def automatic_weights(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """What `spire` applies with its automatic cap, and min(W_(k), c_k) at the bracketed root of c = 1 + (n-1) mean (W_(k)-c)+."""
    batch, products = two_segment_batch(weights)
    return weigh("spire", batch).value.numpy(), np.minimum(products, capped_at_root(products))


def automatic_weights_of(batch: SegmentedBatch) -> tuple[np.ndarray, np.ndarray]:
    """The same for a batch of responses of any length: both [B, T], 0 on padding."""
    ratio = torch.where(batch.mask, batch.logp_target - batch.logp_behavior, 0.0)
    through = torch.stack([(ratio * (batch.segment <= k)).sum(1).exp() for k in range(batch.n_segments)], 1)
    products, label = through.numpy(), batch.segment.clamp(min=0).numpy()
    capped = np.take_along_axis(np.minimum(products, capped_at_root(products)), label, 1)
    return weigh("spire", batch).value.numpy(), np.where(batch.mask.numpy(), capped, 0.0)


def capped_at_root(products: np.ndarray) -> np.ndarray:
    """Root of c = 1 + (n-1) mean (W_(k)-c)+ for every column of products, by bracketing."""
    more = len(products) - 1

    def root(column: np.ndarray) -> float:
        return brentq(
            lambda c: c - 1 - more * np.maximum(column - c, 0).mean(), 0.0, 1 + more * column.max(), xtol=1e-14
        )

    return np.array([root(column) for column in products.T])
