"""The loss a GRPO-style trainer backpropagates: one weight per token, an explicit normalizer and an explicit denominator.

The gradient of every rule is -(1/D) sum w A grad log pi with the rule's detached weight w: the loss declares its value and its
derivative separately, so that a saturated or gated token can put neither NaN nor inf into the gradient of the others.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.numerics import masked_sum, upcast
from testbed.core.shapes import require_shape, rows_or_tokens
from testbed.weighting.rules import weigh

Normalizer = Literal["token_mean", "sequence_mean", "constant"]
Denominator = Literal["original", "kept"]


class _Declared(torch.autograd.Function):
    """A quantity whose value and slope in its last argument are both given."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slope: Tensor, logp: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, Tensor]:
        (slope,) = ctx.saved_tensors
        (upstream,) = grad_outputs
        live = (slope != 0) & (upstream != 0)  # 0 * inf is 0 here: a gated token is gone
        return None, None, torch.where(live, upstream * slope, torch.zeros((), dtype=slope.dtype, device=slope.device))


def policy_loss(
    logp: Float[Tensor, "B T"],
    batch: SegmentedBatch,
    rule: str,
    advantage: Tensor | None = None,
    normalizer: Normalizer = "token_mean",
    denominator: Denominator = "original",
    constant: float | None = None,
    **params: Any,
) -> Float[Tensor, ""]:
    """Loss whose gradient is the rule's off-policy policy gradient, for minimization.

    L = -(1/D) sum_{b,t} L_bt;  dL/dlogp_bt = -w_bt A_bt / D

    At granularities other than `token` the weight is still detached: the gradient is w A grad logp of each token, as declared,
    and not the derivative of a product of ratios.

    L_bt is w A logp for weighting rules (the score-function form) and the clipped surrogate itself, min(r A, clip(r) A), for
    PPO-type rules. The weight is computed from `logp` (detached) and the batch's recorded log-probs.

    Parameters
    ----------
    logp : Float[Tensor, "B T"]     log-probs of the drawn tokens under the policy being trained, nats; carries the graph
    batch : SegmentedBatch          what the samplers recorded
    rule : str                      a name in `testbed.RULES`; its parameters are keywords
    advantage : [B] or [B, T]       None uses the reward
    normalizer : token_mean         D = number of counted tokens
                 sequence_mean      mean over responses of the mean over counted tokens
                 constant           D = `constant`, or B * T (padding included) when None
    denominator : "original" counts every real token; "kept" counts the tokens the rule does not reject, and in
                  sequence_mean only responses that keep a token (clip-type rules reject none)

    Returns
    -------
    scalar in logp's dtype (at least float32); 0 and connected to the graph when nothing is left. Value and gradient are
    finite: a weight that overflows counts as the largest that can be summed (`weigh(...).saturated` says how many do)

    Raises
    ------
    InputError   wrong shapes, unknown rule, normalizer, denominator or parameter, NaN or positive log-probs

    Examples
    --------
    >>> import testbed
    >>> logp = torch.tensor([[-2.0]], requires_grad=True)
    >>> batch = testbed.SegmentedBatch(
    ...     tokens=torch.zeros(1, 1, dtype=torch.long), mask=torch.ones(1, 1, dtype=torch.bool),
    ...     segment=torch.zeros(1, 1, dtype=torch.long), logp_target=logp.detach(), logp_behavior=logp.detach(),
    ...     reward=torch.tensor([1.0]), group=torch.tensor([0]))
    >>> policy_loss(logp, batch, "exact").backward()
    >>> logp.grad
    tensor([[-1.]])
    """
    require_shape("logp", logp, tuple(batch.mask.shape))
    if normalizer not in ("token_mean", "sequence_mean", "constant"):
        raise InputError("`normalizer` must be 'token_mean', 'sequence_mean' or 'constant'", found=repr(normalizer))
    if denominator not in ("original", "kept"):
        raise InputError("`denominator` must be 'original' or 'kept'", found=repr(denominator))
    if constant is not None and (normalizer != "constant" or not constant > 0):
        raise InputError(
            "`constant` must be > 0 and goes with normalizer='constant'", found=f"{constant} with {normalizer}"
        )
    current = batch.replaced(logp_target=logp.detach())
    a = batch.reward if advantage is None else advantage
    a = rows_or_tokens("advantage", a.detach(), batch.batch_size, batch.horizon)
    w = weigh(rule, current, advantage=a, **params)
    dtype = torch.promote_types(w.value.dtype, upcast(logp).dtype)
    zero = torch.zeros((), dtype=dtype, device=logp.device)
    a = torch.where(batch.mask, a.to(dtype), zero)
    if bool(a.isnan().any()):
        raise InputError("`advantage` must not be NaN on a real token", found=f"{int(a.isnan().sum())} NaN")
    slope = torch.where((w.value != 0) & (a != 0), w.value.to(dtype) * a, zero)
    if w.objective is None:
        value = torch.where(slope != 0, slope * current.logp_target.to(dtype), zero)
    else:
        value = w.objective.to(dtype)  # a clipped token has no slope, but its surrogate value counts
    # an overflowing weight stays as large as can be summed: inf - inf, here or in a softmax's backward, would be NaN
    limit = torch.finfo(dtype).max / (2 * max(value.numel(), 1))
    value, slope = value.clamp(-limit, limit), slope.clamp(-limit, limit)
    clean = torch.where(batch.mask, upcast(logp), torch.zeros((), dtype=upcast(logp).dtype, device=logp.device)).to(
        dtype
    )
    objective = _Declared.apply(value, slope, clean)
    # clip-type rules reject nothing: a clipped token loses its slope, not its place in the mean
    counted = batch.mask if denominator == "original" or w.objective is not None else w.gate
    return -reduce_objective(objective, batch.mask, counted, normalizer, constant)  # type: ignore[arg-type]


def reduce_objective(
    objective: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    counted: Bool[Tensor, "B T"],
    normalizer: Normalizer,
    constant: float | None,
) -> Float[Tensor, ""]:
    """Sum over real tokens divided by what the normalizer counts; 0/0 is 0."""
    if normalizer == "token_mean":
        return masked_sum(objective, mask) / counted.sum().clamp(min=1).to(objective.dtype)
    if normalizer == "constant":
        return masked_sum(objective, mask) / (constant if constant is not None else max(mask.numel(), 1))
    per_response = masked_sum(objective, mask, 1) / counted.sum(1).clamp(min=1).to(objective.dtype)
    rows = counted.any(1)
    return masked_sum(per_response, mask.any(1)) / rows.sum().clamp(min=1).to(objective.dtype)
