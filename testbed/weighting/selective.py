"""Selective importance sampling: a drawn token may pass for one of the target's own, and then needs no weight.

Let M bound the ratio k = target/behavior of the law a token was drawn from. A token accepted with probability k/M has
the target's law and could be used as it is; selective importance sampling does that (weight 1) *and* keeps the rejected
tokens (weight k). Each half alone would be unbiased; together they are not: with every token tested and M >= max k,

    E w = 1 - chi2/M,   bias on f = (E_target f - E[k^2 f])/M   (C12).

The completion gives a rejected token the weight (k - a)/(1 - a), a = k/M, which makes the two halves add up: it is
unbiased for M > max k, and costs E[a (k-1)^2 / (1-a)] of second moment over k alone. A ratio that reaches M is always
accepted, so at M = max k it would lose the excess of that one token.

Without a chooser the weight is its expectation over acceptance, given the token: a + (1-a) k, and k for the completion.
It has the same mean and a smaller variance; the draw exists to study what the published rule does.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.weighting.limits import at_least, log
from testbed.weighting.weights import Request, Weights, finish

UNSEEN = 1e-6  # sampler's mass outside a head narrower than `top_k`: more than this, and the head was cut short


def head_log_bound(batch: SegmentedBatch, top_k: int) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Log of the largest ratio in the head of the sampler's law, and whether the drawn token belongs to that head.

        log max(1, max of target/behavior over the sampler's top_k tokens)

    The ratios average to 1, so their maximum over everything the sampler can draw is at least 1: the 1 acts only where
    the head does not hold the maximum.

    Parameters
    ----------
    batch : SegmentedBatch   with `next_token`
    top_k : int              tokens that tie with the k-th belong to the head too

    Returns
    -------
    (nats >= 0, drawn token in the head)   False on padding

    Raises
    ------
    InputError   fewer than top_k tokens were recorded although the sampler gives the others more than 1e-6
    Assumes      the laws are those of the same two policies as the batch's log-probs

    Examples
    --------
    >>> from testbed.core.next_token import NextTokenLaws
    >>> law = torch.log(torch.tensor([[[0.5, 0.3, 0.2]], [[0.25, 0.3, 0.45]]], dtype=torch.float64))
    >>> laws = NextTokenLaws(
    ...     ids=torch.tensor([[[0, 1, 2]]]), logp_behavior=law[:1], logp_target=law[1:],
    ...     remaining_target=torch.zeros(1, 1), remaining_behavior=torch.zeros(1, 1))
    >>> batch = SegmentedBatch(
    ...     tokens=torch.tensor([[2]]), mask=torch.tensor([[True]]), segment=torch.tensor([[0]]),
    ...     logp_target=law[1, :, 2:], logp_behavior=law[0, :, 2:], reward=torch.ones(1), group=torch.tensor([0]),
    ...     next_token=laws)
    >>> [(round(float(bound.exp()), 12), bool(seen)) for bound, seen in (head_log_bound(batch, k) for k in (2, 3))]
    [(1.0, False), (2.25, True)]
    """
    laws = batch.require("next_token", "sis")
    if laws.width < top_k and bool((laws.remaining_behavior > UNSEEN).any()):
        raise InputError(
            f"`next_token` must hold the sampler's {top_k} likeliest tokens",
            found=f"{laws.width} per position, with up to {float(laws.remaining_behavior.max()):.3g} outside",
            hint="record more, or lower `top_k`",
        )
    behavior = laws.logp_behavior.detach()
    least = behavior.topk(min(top_k, laws.width)).values[..., -1:]
    head = (behavior >= least) & ~torch.isneginf(behavior)
    ratio = torch.where(head, laws.logp_target.detach() - behavior, -torch.inf)
    drawn = (head & (laws.ids == batch.tokens[..., None])).any(-1)
    return ratio.amax(-1).clamp(min=0.0), drawn & batch.mask


def acceptance(
    log_ratio: Float[Tensor, "B T"], log_bound: Float[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Probabilities that a token is accepted and rejected: a = min(1, k/M) and 1 - a, each to full precision.

    Examples
    --------
    >>> a, b = acceptance(torch.tensor([[0.0, 5.0, -torch.inf]]), torch.tensor([[0.6931472, 2.0, 1.0]]))
    >>> a, b
    (tensor([[0.5000, 1.0000, 0.0000]]), tensor([[0.5000, 0.0000, 1.0000]]))
    """
    excess = (log_ratio - log_bound).clamp(max=0.0)
    return excess.exp(), torch.expm1(excess).abs()


def accepted(
    chooser: Chooser, accept: Float[Tensor, "B T"], reject: Float[Tensor, "B T"], tested: Bool[Tensor, "B T"]
) -> Bool[Tensor, "B T"]:
    """Draw acceptance of the tested tokens, one choice each, keyed by (response, position); False elsewhere."""
    where = torch.nonzero(tested)
    out = torch.zeros_like(tested)
    if len(where):
        laws = torch.stack([reject[tested], accept[tested]], 1).double()
        out[tested] = chooser.choose(laws, where) == 1
    return out


def expected_weight(
    log_ratio: Float[Tensor, "B T"], accept: Float[Tensor, "B T"], reject: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Weight averaged over acceptance, a + (1 - a) k, as a sum of non-negative parts; exactly 1 at k = 1."""
    ratio = log_ratio.exp()
    large = accept + torch.where(reject > 0, reject * ratio, torch.zeros_like(ratio))
    return torch.where(log_ratio > 0, large, ratio - accept * torch.expm1(log_ratio.clamp(max=0.0)))


def weigh_sis(request: Request, top_k: object, bound: object, completion: object, chooser: object) -> Weights:
    """Weight 1 on an accepted token, k or its completion on a rejected one, k where there is no test."""
    if not isinstance(completion, bool):
        raise InputError("`completion` of rule `sis` must be True or False", found=repr(completion))
    log_ratio, mask = request.log_ratio(), request.batch.mask
    if bound is None:
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
            raise InputError("`top_k` must be a whole number >= 1", found=repr(top_k))
        log_bound, tested = head_log_bound(request.batch, top_k)
        log_bound = log_bound.to(log_ratio.dtype)
    else:
        log_bound, tested = _given(bound, log_ratio), mask
    accept, reject = acceptance(log_ratio, log_bound)
    ratio = log_ratio.exp()
    one = torch.ones_like(ratio)
    if chooser is not None:
        kept = accepted(require_chooser(chooser, "sis"), accept, reject, tested)
        other = ratio * (-torch.expm1(-log_bound) / reject) if completion else ratio
        value = torch.where(kept, one, torch.where(tested, other, ratio))
    elif completion:
        value = torch.where(tested & (reject == 0), one, ratio)
    else:
        value = torch.where(tested, expected_weight(log_ratio, accept, reject), ratio)
    return finish(request, log_ratio, value)


def _given(bound: object, log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Log of a bound M >= 1 (no smaller one exists: the ratios average to 1), one for all tokens or one for each."""
    if isinstance(bound, Tensor):
        require_shape("bound", bound, tuple(log_ratio.shape))
        at_least("bound", float(bound.min()) if bound.numel() else 1.0, 1.0)
        return bound.detach().to(log_ratio.dtype).log()
    return torch.full_like(log_ratio, log(at_least("bound", bound, 1.0)))


def require_chooser(chooser: object, rule: str) -> Chooser:
    """Return a chooser, or raise InputError naming the rule that was given something else."""
    if not isinstance(chooser, Chooser):
        raise InputError(
            f"`chooser` of rule `{rule}` must be a Chooser or None",
            found=repr(chooser),
            hint="RandomChooser(seed) draws; None takes the expectation",
        )
    return chooser
