"""Optimal budgeted rejection sampling: drop tokens until the rest look more like the target's, then weigh what is left.

A token drawn from q is kept with probability a = min(1, p/(lam q)), so the kept tokens have the law

    p'(v) = q(v) a(v) / Z,   Z = sum_v min(q(v), p(v)/lam) = P(kept)

and the weight p/p' = Z max(lam, k), k = p/q, which never falls below Z lam however small k is. A small lam keeps more
and corrects less (lam <= min k keeps everything); lam >= max k is plain rejection sampling, with p' = p and weight 1.

A kept token's weight averages to 1 *over the kept tokens*. Over all tokens it averages to Z, since
a Z max(lam, k) = Z k: summed over the original count the rule scales the gradient by the kept share of each position,
and only a denominator that counts kept tokens, in expectation, undoes it.

Z needs the whole law of both policies; `share` gives it where another estimate is at hand, such as the kept share of a batch.
Without a chooser the weight is that expectation given the token (the cap inside: a min(Z max(lam, k), cap)) and the gate
is open everywhere; with one, each token is kept or gated off by a draw.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.weighting.limits import at_least, log, positive
from testbed.weighting.selective import acceptance, accepted, require_chooser
from testbed.weighting.truncate import truncate
from testbed.weighting.weights import Request, Weights, finish


def log_kept_share(batch: SegmentedBatch, lam: float | int, tail: float | int = 1e-6) -> Float[Tensor, "B T"]:
    """Log of the probability Z that a token drawn at each position would be kept.

        Z = sum_v min(q(v), p(v)/lam)

    Parameters
    ----------
    batch : SegmentedBatch   with `next_token`
    lam : float              > 0
    tail : float             most of Z that may be unresolved: tokens outside the recorded head count as one outcome, whose
                             min(q, p/lam) is the largest their own could sum to

    Returns
    -------
    Float64[Tensor, "B T"]   nats, <= 0; 0 on padding

    Raises
    ------
    InputError   the recorded heads leave more than `tail` unresolved
    Numerics     a sum of logs where Z is small; 1 minus what is dropped where it is large: exactly 1 if nothing is

    Examples
    --------
    >>> from testbed.core.next_token import NextTokenLaws
    >>> law = torch.log(torch.tensor([[[0.5, 0.5]], [[0.75, 0.25]]], dtype=torch.float64))
    >>> laws = NextTokenLaws(
    ...     ids=torch.tensor([[[0, 1]]]), logp_behavior=law[:1], logp_target=law[1:],
    ...     remaining_target=torch.zeros(1, 1), remaining_behavior=torch.zeros(1, 1))
    >>> batch = SegmentedBatch(
    ...     tokens=torch.tensor([[0]]), mask=torch.tensor([[True]]), segment=torch.tensor([[0]]),
    ...     logp_target=law[1, :, :1], logp_behavior=law[0, :, :1], reward=torch.ones(1), group=torch.tensor([0]),
    ...     next_token=laws)
    >>> [round(float(log_kept_share(batch, lam).exp()), 12) for lam in (1.0, 1.5, 3.0)]
    [0.75, 0.666666666667, 0.333333333333]
    """
    laws, scale = batch.require("next_token", "obrs"), log(positive("lam", lam))
    limit = at_least("tail", tail, 0.0, 1.0)
    rest = torch.stack([laws.remaining_behavior, laws.remaining_target]).detach().double().log()
    open_tail = torch.minimum(rest[0], rest[1] - scale)
    unresolved = open_tail.exp().masked_fill(~batch.mask, 0.0)
    if bool((unresolved > limit).any()):
        raise InputError(
            "rule `obrs` needs the whole next-token law",
            found=f"up to {float(unresolved.max()):.3g} of the kept share outside the recorded tokens",
            hint="record more tokens, or raise `tail`",
        )
    behavior = torch.cat([laws.logp_behavior.detach().double(), rest[0][..., None]], -1)
    share = torch.cat([laws.logp_target.detach().double(), rest[1][..., None]], -1) - scale
    log_small = torch.minimum(behavior, share).logsumexp(-1)
    dropped = (behavior.exp() - share.exp()).clamp(min=0.0).sum(-1)
    log_large = torch.log1p(-dropped.clamp(max=0.75))
    return torch.where(dropped < 0.5, log_large, log_small.clamp(max=0.0)).masked_fill(~batch.mask, 0.0)


def weigh_obrs(request: Request, lam: object, cap: object, tail: object, share: object, chooser: object) -> Weights:
    """Weight min(Z max(lam, k), cap) on a kept token; without a chooser, times the probability of keeping it."""
    factor, top = positive("lam", lam), positive("cap", cap)
    if factor == math.inf:
        raise InputError("`lam` must be finite", found=factor, hint="an infinite one keeps nothing")
    log_ratio = request.log_ratio()
    if share is None:
        log_share = log_kept_share(request.batch, factor, at_least("tail", tail, 0.0, 1.0)).to(log_ratio.dtype)
    else:
        log_share = _given(share, log_ratio)
    edge = torch.full_like(log_ratio, math.log(factor))
    keep, drop = acceptance(log_ratio, edge)
    log_weight = log_share + torch.maximum(log_ratio, edge)
    if chooser is not None:
        gate = accepted(require_chooser(chooser, "obrs"), keep, drop, request.batch.mask)
        return finish(request, log_ratio, truncate(log_weight, top), gate=gate)
    whole = (log_share + log_ratio).exp()  # a Z max(lam, k) = Z k, without the rounding of two factors
    value = torch.where(log_weight <= log(top), whole, keep * top)
    return finish(request, log_ratio, value)


def _given(share: object, log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Log of a kept share Z in (0, 1], one for all positions or one for each."""
    if isinstance(share, Tensor):
        require_shape("share", share, tuple(log_ratio.shape))
        for end in (share.min(), share.max()) if share.numel() else ():
            at_least("share", positive("share", float(end)), 0.0, 1.0)
        return share.detach().to(log_ratio.dtype).log()
    return torch.full_like(log_ratio, math.log(at_least("share", positive("share", share), 0.0, 1.0)))
