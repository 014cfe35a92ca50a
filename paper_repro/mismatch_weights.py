"""Weights that the library's rules give to a sample of drawn tokens."""

from __future__ import annotations

import numpy as np
import torch

from paper_repro.mismatch_samples import Array, TokenSample
from testbed.core.batch import SegmentedBatch
from testbed.weighting.rules import weigh

ARMS: dict[str, tuple[str, dict[str, object]]] = {  # the arms of table 8, and the readings of the row that is cut off
    "No correction": ("none", {}),
    "Exact ratio": ("exact", {"clamp": True}),
    "TIS": ("tis", {"cap": 2.0}),
    "IcePop": ("icepop", {"low": 0.5, "high": 5.0}),
    "KPop": ("kpop", {"phi": 2.0}),
    "Seq-TIS": ("seq_tis", {"cap": 2.0}),
    "Seq-MIS": ("seq_mis", {"low": 0.0, "cap": 2.0}),
    "CIS, odds": ("cis", {"lam": 2.3, "floor": 5e-3, "cap_form": "odds"}),
    "CIS, linear": ("cis", {"lam": 2.3, "floor": 5e-3, "cap_form": "linear"}),
    "CIS, loglinear": ("cis", {"lam": 2.3, "floor": 5e-3, "cap_form": "loglinear"}),
}


def batch_of(sample: TokenSample) -> SegmentedBatch:
    """Return the sample as a batch, one row per response, its tokens in the order of the sample."""
    row, column = places(sample)
    shape = (int(row.max()) + 1, int(column.max()) + 1)

    def laid_out(values: Array) -> torch.Tensor:
        table = torch.zeros(shape, dtype=torch.float64)
        table[row, column] = torch.from_numpy(values)
        return table

    mask = laid_out(np.ones(len(sample))) > 0
    nothing = torch.zeros(shape, dtype=torch.int64)
    return SegmentedBatch(
        tokens=nothing,
        mask=mask,
        segment=torch.where(mask, 0, -1),
        logp_target=laid_out(sample.logp_target),
        logp_behavior=laid_out(sample.logp_behavior),
        reward=torch.zeros(shape[0], dtype=torch.float64),
        group=nothing[:, 0],
    )


def places(sample: TokenSample) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each token in `batch_of`."""
    _, row, count = np.unique(sample.response, return_inverse=True, return_counts=True)
    order = np.argsort(row, kind="stable")
    column = np.empty(len(row), dtype=np.int64)
    column[order] = np.arange(len(row)) - np.repeat(count.cumsum() - count, count)
    return torch.from_numpy(row), torch.from_numpy(column)


def weights_of(sample: TokenSample, rule: str, **params: object) -> Array:
    """Weight of each token under a rule, in the order of the sample."""
    row, column = places(sample)
    return weigh(rule, batch_of(sample), **params).value[row, column].numpy()


def acted_on(sample: TokenSample, rule: str, **params: object) -> float:
    """Share of tokens that a rule truncates or masks."""
    row, column = places(sample)
    return float(weigh(rule, batch_of(sample), **params).acted[row, column].double().mean())
