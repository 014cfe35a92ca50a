"""One set of bootstrap draws of whole responses for many means: intervals of different rules then vary together.

A mean over tokens (or segments) is a ratio of two sums over responses, drawn anew together; with counts C of how often a
draw holds each response, all draws of all means are the matrix product (C totals) / (C sizes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.seeds import SeedTree
from testbed.diagnosis.response_draws import percentile_interval, response_draws
from testbed.diagnosis.response_means import FEWEST

ENTRIES, LEAST_DRAWS, MOST_DRAWS = 8_000_000, 200, 1000  # counts kept; draws
CHUNK = 64  # draws multiplied at a time
LARGEST = 1e250  # sums beyond it have no interval: their multiples overflow


class SharedDraws:
    """Draws of n responses, made once.

    Examples
    --------
    >>> draws = SharedDraws(30, SeedTree("example"))
    >>> ones = torch.ones(30, 2, dtype=torch.float64)
    >>> draws.intervals([ones, 0 * ones], ones > 0)[0]["low"]
    1.0
    """

    def __init__(self, n: int, seeds: SeedTree) -> None:
        resamples = min(max(ENTRIES // max(n, 1), LEAST_DRAWS), MOST_DRAWS)
        self.counts = np.stack([draw.astype(np.int16) for draw in response_draws(n, seeds, resamples)])

    def intervals(
        self, values: list[Float[Tensor, "B T"]], selected: Bool[Tensor, "B T"]
    ) -> list[dict[str, Any] | None]:
        """95% percentile interval of each mean over the selected entries.

        Returns
        -------
        list   low, high, level, method; None with entries in fewer than 20 responses, or a sum beyond 1e250
        """
        sizes = selected.sum(1).double().numpy()
        if int((sizes > 0).sum()) < FEWEST:
            return [None] * len(values)
        totals = torch.stack([torch.where(selected, each, 0.0).double().sum(1) for each in values], 1).numpy()
        known = [bool((np.abs(column) < LARGEST).all()) for column in totals.T]
        columns = np.column_stack([np.where(known, totals, 0.0), sizes])
        drawn = np.concatenate(
            [self.counts[i : i + CHUNK].astype(np.float64) @ columns for i in range(0, len(self.counts), CHUNK)]
        )
        drawn = drawn[drawn[:, -1] > 0]
        means = drawn[:, :-1] / drawn[:, -1:]
        return [percentile_interval(means[:, k].tolist()) if known[k] else None for k in range(len(values))]
