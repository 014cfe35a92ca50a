"""Score centering: subtract what a weighted score averages to, so that no weight can push without a reward.

With the exact ratio, E_q[k s] = E_p[s] = 0 at every prefix. A truncated or masked weight w breaks that: E_q[w s] is a
drift that does not depend on any reward. Subtracting it, over the whole vocabulary and prefix by prefix,

    g = sum_t A_t (w_t s_t - sum_v q_v w_v s_v),   s_v = grad log target(v | h_t),

leaves of the bias of one decision only -E_q[(k - w) s (A - E_q A)]: a constant advantage contributes nothing (C16).
The expectation over v is that of the rule's own weight, so it changes no other property of the rule.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.numerics import upcast
from testbed.core.shapes import require_shape, rows_or_tokens
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.loss import Denominator, Normalizer, reduce_objective
from testbed.estimators.vocabulary_weights import vocabulary_weights, whole_laws
from testbed.policies.base import Policy


def center_terms(
    batch: SegmentedBatch, q_times_w: Float[Tensor, "B T k"], pi: Policy, advantage: Tensor
) -> Float[Tensor, "B ..."]:
    """What is subtracted from each response's term: sum_t A_t sum_v q_v w_v grad log pi(v | h_t).

    Parameters
    ----------
    batch : SegmentedBatch               with `next_token`, whose ids the last dimension follows
    q_times_w : Float[Tensor, "B T k"]   behavior probability times weight, 0 off the support
    pi : Policy with parameters
    advantage : [B] or [B, T]

    Returns
    -------
    Float64[Tensor, "B *parameters"]   exact; one call of `pi.score_terms` per position and slot
    """
    ids = whole_laws(batch, "score centering").ids.clamp(min=0)
    a = rows_or_tokens("advantage", advantage.detach(), batch.batch_size, batch.horizon).double()
    coefficient = torch.where(q_times_w != 0, q_times_w.double() * a[..., None], torch.zeros((), dtype=torch.float64))
    asked, total = pi.at(batch.group), None
    for t in range(batch.horizon):
        prefix = batch.tokens[:, : t + 1].clone()
        only_last = torch.zeros(prefix.shape, dtype=torch.float64)
        for slot in range(ids.shape[-1]):
            prefix[:, t], only_last[:, t] = ids[:, t, slot], coefficient[:, t, slot]
            part = asked.score_terms(prefix, only_last)
            total = part if total is None else total + part
    if total is None:
        raise InputError("score centering needs at least one position", found="a batch of horizon 0")
    return total


def centered_terms(
    batch: SegmentedBatch, rule: str, pi: Policy, advantage: Tensor | None = None, **params: Any
) -> Float[Tensor, "B ..."]:
    """Terms of the centered, weighted score-function estimator, one per response.

        g_b = sum_t A_bt (w_bt s_bt - sum_v q_v w_v s_v)

    Parameters
    ----------
    batch : SegmentedBatch            with `next_token` over the whole vocabulary (`exact.with_next_token_laws`)
    rule : str                        a rule on token ratios; its parameters are keywords
    pi : Policy with parameters       the batch's target: the scores are taken in its parameters
    advantage : [B] or [B, T] | None  None uses `batch.reward`

    Returns
    -------
    Float64[Tensor, "B *parameters"]

    Raises
    ------
    MissingField, InputError   no whole laws; a rule whose weight depends on other tokens or on the batch

    Assumes        recorded laws are those of `pi` and of the policies that drew the tokens
    Gives          E[g] = 0 for a constant advantage, any weight and any state law; the uncentered term for the exact ratio
                   in expectation (C16)
    References     Score centering, arXiv 2609.20807

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law, moments
    >>> from testbed.exact.next_token_laws import with_next_token_laws
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]])) for p in (0.9, 0.3))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[1.0, 1.0]), pi, mu)
    >>> batch = with_next_token_laws(law.batch, pi, mu)
    >>> weight = torch.tensor([[2.0], [1 / 7]], dtype=torch.float64)  # what `tis` gives
    >>> round(float(moments(law, gradient_terms(batch, weight, pi)).mean.abs().max()), 6)
    0.03
    >>> float(moments(law, centered_terms(batch, "tis", pi)).mean.abs().max()) < 1e-15
    True
    """
    a = batch.reward if advantage is None else advantage
    drawn, every = vocabulary_weights(batch, rule, a, **params)
    return gradient_terms(batch, drawn, pi, a) - center_terms(batch, expected_weight(batch, every), pi, a)


def expected_weight(batch: SegmentedBatch, every: Float[Tensor, "B T k"]) -> Float[Tensor, "B T k"]:
    """Behavior probability times weight, token by token: 0 off the support, where a weight may be anything.

    A weight that overflowed counts as the largest number, so that a probability of 0 leaves 0 of it.
    """
    largest = torch.finfo(every.dtype).max
    behavior = whole_laws(batch, "score centering").logp_behavior.detach().to(every.dtype).exp()
    return torch.where(every != 0, behavior * every.clamp(max=largest), torch.zeros_like(every))


def centered_loss(
    next_log_probs: Float[Tensor, "B T V"],
    batch: SegmentedBatch,
    rule: str,
    advantage: Tensor | None = None,
    normalizer: Normalizer = "token_mean",
    denominator: Denominator = "original",
    constant: float | None = None,
    **params: Any,
) -> Float[Tensor, ""]:
    """Loss whose gradient is the centered, weighted policy gradient, for minimization.

        L = -(1/D) sum_bt A (w log pi(y_t) - sum_v q_v w_v log pi(v)), w detached

    Parameters
    ----------
    next_log_probs : Float[Tensor, "B T V"]   log-probs of the whole vocabulary under the policy being trained; carries
                                              the graph; what stands in padding is not read
    batch : SegmentedBatch                    its `next_token` holds the behaviors' laws; the target's are replaced
    the others                                as `policy_loss`

    Returns
    -------
    scalar, finite value and gradient; 0 and connected to the graph when nothing is left

    Raises
    ------
    MissingField, InputError   as `centered_terms`; log-probs of another shape

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> from testbed.exact.next_token_laws import with_next_token_laws
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]])) for p in (0.9, 0.3))
    >>> batch = with_next_token_laws(enumerate_law(PrefixTree(2, 1, rewards=[1.0, 1.0]), pi, mu).batch, pi, mu)
    >>> logits = pi.logits.clone().requires_grad_()
    >>> centered_loss(torch.log_softmax(logits, -1).expand(2, 1, 2), batch, "tis").backward()
    >>> logits.grad.shape
    torch.Size([1, 2])
    """
    require_shape("next_log_probs", next_log_probs, (*batch.mask.shape, next_log_probs.shape[-1]))
    live = batch.mask[..., None].expand(next_log_probs.shape)
    logp = torch.where(live, upcast(next_log_probs), torch.zeros((), dtype=upcast(next_log_probs).dtype))
    current = _scored_now(batch, logp.detach())
    a = batch.reward if advantage is None else advantage
    drawn, every = vocabulary_weights(current, rule, a, **params)
    laws = whole_laws(current, "score centering")
    dtype = torch.promote_types(drawn.value.dtype, logp.dtype)
    spread = rows_or_tokens("advantage", a.detach(), *batch.mask.shape).to(dtype)
    limit = math.sqrt(torch.finfo(dtype).max) / (2 * max(logp.numel(), 1))  # inf - inf would be NaN
    center = expected_weight(current, every.to(dtype)).clamp(max=limit)
    own = torch.zeros_like(logp, dtype=dtype)
    own = own.scatter(-1, batch.tokens[..., None], drawn.value.to(dtype).clamp(max=limit)[..., None])
    slope = own.scatter_add(-1, laws.ids.clamp(min=0), torch.where(laws.ids >= 0, -center, 0.0))
    slope = torch.where((slope != 0) & live, slope * spread[..., None].clamp(-limit, limit), 0.0)
    finite = torch.isfinite(logp)  # a token the policy cannot produce has weight 0
    value = torch.where(finite & (slope != 0), logp.to(dtype), 0.0) * slope
    counted = batch.mask if denominator == "original" or drawn.objective is not None else drawn.gate
    return -reduce_objective(value.sum(-1), batch.mask, counted, normalizer, constant)


def _scored_now(batch: SegmentedBatch, logp: Float[Tensor, "B T V"]) -> SegmentedBatch:
    """Return the batch with the target's log-probs, of drawn tokens and of whole laws, replaced by these."""
    laws = whole_laws(batch, "score centering")
    target = logp.gather(-1, laws.ids.clamp(min=0))
    target = torch.where(laws.ids >= 0, target, torch.full((), -torch.inf, dtype=logp.dtype))
    renewed = type(laws)(
        ids=laws.ids,
        logp_target=target,
        logp_behavior=laws.logp_behavior,
        remaining_target=torch.zeros_like(laws.remaining_target),
        remaining_behavior=laws.remaining_behavior,
    )
    return batch.replaced(logp_target=logp.gather(-1, batch.tokens[..., None])[..., 0], next_token=renewed)
