"""Value estimators as per-response terms: importance sampling, per-decision, doubly robust; and the self-normalized ratio."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.weighting.granularity import log_ratios

Kind = Literal["importance_sampling", "per_decision", "doubly_robust"]


def value_terms(
    batch: SegmentedBatch, kind: Kind = "importance_sampling", state_value: Float[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """Terms whose mean estimates J(pi) = E_pi[R] from responses drawn by recorded behaviors.

    importance_sampling   W_T R
    per_decision          sum_t W_t r_t                                  (needs `token_reward`)
    doubly_robust         V(h_1) + sum_t W_t (r_t + V(h_{t+1}) - Q(h_t, y_t)), V(h_{T+1}) = 0
                          (needs `action_value` = Q and `state_value` = V(h_t) = E_{y~pi} Q(h_t, y))

    with W_t the product of target/behavior ratios through t. Without `token_reward` the reward falls on the last token.

    Parameters
    ----------
    batch : SegmentedBatch
    kind : which estimator
    state_value : Float[Tensor, "B T"]   only for doubly_robust; reward-to-go of the critic before each token

    Returns
    -------
    Float64[Tensor, " B"]

    Raises
    ------
    InputError, MissingField   unknown kind; a field the estimator needs

    Assumes        every behavior supports the target; prefix-measurable boundaries (S1)
    Gives          unbiased, all three; doubly robust for any Q whose V is its own mean under pi
    References     Precup, Sutton and Singh 2000; Jiang and Li 2016

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> mu = TabularPolicy.from_probs(torch.tensor([[0.2, 0.8]]))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), TabularPolicy(torch.zeros(1, 2)), mu)
    >>> round(float(law.expect(value_terms(law.batch))), 12)
    0.5
    """
    prefix = torch.where(batch.mask, log_ratios(batch, "prefix"), torch.full((), float("-inf"))).double().exp()
    reward = batch.reward.double()
    if kind == "importance_sampling":
        whole = log_ratios(batch, "sequence_product").double()
        if batch.horizon == 0:
            return torch.zeros_like(reward)
        first = whole.gather(1, batch.mask.long().argmax(1, keepdim=True))[:, 0]
        return torch.where(batch.mask.any(1), first.exp() * reward, torch.zeros_like(reward))
    if kind == "per_decision":
        return _dot(prefix, batch.require("token_reward", "per_decision").double(), batch)
    if kind == "doubly_robust":
        if state_value is None:
            raise InputError(
                "`doubly_robust` needs `state_value` [B, T]", found="None", hint="V(h_t) of the same critic"
            )
        require_shape("state_value", state_value, tuple(batch.mask.shape))
        value = torch.where(batch.mask, state_value.double(), torch.zeros((), dtype=torch.float64))
        after = _next_real(value, batch.mask)
        steps = batch.token_reward.double() if batch.token_reward is not None else _on_last_token(reward, batch)
        surprise = steps + after - batch.require("action_value", "doubly_robust").double()
        first = value.gather(1, batch.mask.long().argmax(1, keepdim=True))[:, 0] if batch.horizon else value.sum(1)
        return first + _dot(prefix, surprise, batch)
    raise InputError("`kind` must be 'importance_sampling', 'per_decision' or 'doubly_robust'", found=repr(kind))


def self_normalized_value(
    weights: Float[Tensor, " B"], values: Float[Tensor, " B"], index: Int64[Tensor, "M n"] | None = None
) -> Float[Tensor, "..."]:
    """Self-normalized estimate sum w f / sum w of a batch, or of M batches given by row indices.

    Parameters
    ----------
    weights, values : Float[Tensor, " B"]   weights >= 0, not all zero in a batch (a batch of zeros gives 0)
    index : Int64[Tensor, "M n"] | None     rows of each batch; None = one batch of all rows

    Returns
    -------
    Float64 scalar, or Float64[Tensor, " M"]

    Gives          biased of order d2/n (S18); always between min f and max f
    References     Agapiou, Papaspiliopoulos, Sanz-Alonso and Stuart 2017

    Examples
    --------
    >>> self_normalized_value(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))
    tensor(0.7500, dtype=torch.float64)
    """
    w, f = weights.double(), values.double()
    if index is not None:
        w, f = w[index], f[index]
    total = w.sum(-1)
    return torch.where(total > 0, (w * f).sum(-1) / torch.where(total > 0, total, torch.ones_like(total)), total)


def _next_real(value: Tensor, mask: Tensor) -> Tensor:
    """Value at the next real token of each position (0 after the last): padding may stand between two tokens."""
    after, coming = torch.zeros_like(value), torch.zeros_like(value[:, 0] if value.shape[1] else value.sum(1))
    for t in range(value.shape[1] - 1, -1, -1):
        after[:, t] = coming
        coming = torch.where(mask[:, t], value[:, t], coming)
    return after


def _dot(weight: Tensor, value: Tensor, batch: SegmentedBatch) -> Tensor:
    # 0 * anything is 0 here: a response the target cannot produce contributes nothing, whatever its reward
    live = batch.mask & (weight != 0)
    return torch.where(live, weight * value, torch.zeros((), dtype=torch.float64)).sum(1)


def _on_last_token(reward: Tensor, batch: SegmentedBatch) -> Tensor:
    position = torch.arange(batch.horizon).expand_as(batch.mask)
    last = torch.where(batch.mask, position, -1).max(1, keepdim=True).values
    return torch.where((position == last) & batch.mask, reward[:, None], torch.zeros((), dtype=torch.float64))
