"""Responses and their ledger as arrays, the form in which a measurement keeps them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.policies.transformer import Numerics, TransformerPolicy
from testbed.rollout.speculative.near_ties import Parting, TieChooser, exact_gap

Arrays = dict[str, np.ndarray]


def batch_arrays(batch: SegmentedBatch) -> Arrays:
    """Return what is kept of responses."""
    return {
        "tokens": batch.tokens.numpy().astype(np.int32),
        "mask": batch.mask.numpy(),
        "log_prob": batch.logp_behavior.numpy(),
        "group": batch.group.numpy(),
    }


def batch_of(part: Arrays) -> SegmentedBatch:
    """Responses that were kept."""
    tokens, mask, log_prob, group = (torch.from_numpy(part[name]) for name in ("tokens", "mask", "log_prob", "group"))
    return SegmentedBatch(
        tokens=tokens.long(),
        mask=mask,
        segment=torch.zeros_like(tokens, dtype=torch.int64),
        logp_target=log_prob,
        logp_behavior=log_prob,
        reward=torch.zeros(len(tokens), dtype=torch.float64),
        group=group,
    )


def ledger_arrays(
    found: list[Parting],
    first: SegmentedBatch,
    second: SegmentedBatch,
    gaps: Tensor,
    policy: TransformerPolicy,
    chooser: TieChooser,
) -> Arrays:
    """Per response: where it parts (-1: nowhere), the tokens and gaps there, and how far the log-probs were apart before."""
    count, horizon = first.tokens.shape
    parted, tokens = np.full(count, -1), np.full((count, 2), -1)
    seen, exact = np.full((count, 2), np.nan), np.full(count, np.nan)
    for one in found:
        prefix = first.tokens[one.response, : one.position]
        alone = policy.under(Numerics()).at(first.group[one.response : one.response + 1])
        noise = chooser.noise(one.response, one.position, policy.vocab_size)
        one = replace(one, exact=exact_gap(alone, prefix, noise))
        parted[one.response], tokens[one.response], seen[one.response] = one.position, one.tokens, one.gaps
        exact[one.response] = one.exact
    end = np.where(parted < 0, first.lengths.numpy(), parted)
    shared = torch.arange(horizon) < torch.from_numpy(end)[:, None]
    apart = torch.where(shared, (first.logp_behavior - second.logp_behavior).abs(), 0.0).amax(1)
    upto = torch.arange(horizon) < torch.from_numpy(np.minimum(end + 1, first.lengths.numpy()))[:, None]
    closest = torch.where(upto, gaps, torch.inf)
    return {
        "parted": parted,
        "parted_tokens": tokens,
        "parted_gaps": seen,
        "parted_exact": exact,
        "compared": end,
        "apart": apart.numpy(),
        "closest": closest.amin(1).numpy(),
    }
