"""Rules without an operator: no weight at all, or the ratio of one granularity as it is.

`none` ignores the ratio (its bias is the whole mismatch); `prefix`, `segment`, `segment_prefix` and
`sequence_product` are the granularities of these names (S1-S4). `exact` is the literature's name for the unaltered
*token* ratio: exact for the law of one token, biased for a response (S5).
"""

from __future__ import annotations

import torch

from testbed.core.errors import InputError
from testbed.weighting.truncate import clamp as clamp_ratio
from testbed.weighting.weights import Request, Weights, finish

EXACT_RANGE = (1e-6, 1e6)  # the optional clamp of `exact`


def weigh_none(request: Request) -> Weights:
    """Weight 1 on every token the target can produce (0 elsewhere: no rule trains on an impossible token)."""
    log_ratio = request.log_ratio()
    value = (~torch.isneginf(log_ratio)).to(log_ratio.dtype)
    return finish(request, log_ratio, value, acted=torch.zeros_like(request.batch.mask))


def weigh_exact(request: Request, clamp: object) -> Weights:
    """Weight rho_t, optionally kept within [1e-6, 1e6]."""
    if not isinstance(clamp, bool):
        raise InputError("`clamp` of rule `exact` must be True or False", found=repr(clamp))
    log_ratio = request.log_ratio()
    value = clamp_ratio(log_ratio, *EXACT_RANGE) if clamp else log_ratio.exp()
    return finish(request, log_ratio, value)


def _as_it_is(request: Request) -> Weights:
    log_ratio = request.log_ratio()
    return finish(request, log_ratio, log_ratio.exp())


def weigh_prefix(request: Request) -> Weights:
    """Weight prod_{s<=t} rho_s."""
    return _as_it_is(request)


def weigh_segment(request: Request) -> Weights:
    """Weight: the product over the whole segment of t."""
    return _as_it_is(request)


def weigh_segment_prefix(request: Request) -> Weights:
    """Weight: the product from the first token through the end of t's segment."""
    return _as_it_is(request)


def weigh_sequence_product(request: Request) -> Weights:
    """Weight: the product over the response."""
    return _as_it_is(request)
