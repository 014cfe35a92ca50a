"""Earlier checkpoints of one model: the behaviors of a trainer whose sampler lags behind."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.model import Transformer


def steps(
    model: Transformer, loss: Callable[[Transformer], Tensor], count: int, rate: float, *, normalized: bool = False
) -> list[Transformer]:
    """Return the model and the checkpoints after each of `count` gradient steps on a loss.

        w_0 = model,     w_{j+1} = w_j - rate * g_j,     g_j = grad loss(w_j), divided by its norm if `normalized`

    Parameters
    ----------
    model : Transformer               left as it is
    loss : Transformer -> scalar      differentiable in its weights
    count : int                       >= 0
    rate : float                      finite; with `normalized`, the distance of consecutive checkpoints
    normalized : bool                 whether steps have length `rate` whatever the gradient

    Returns
    -------
    list of Transformer               count + 1, oldest first (as `steps_behind` wants them)

    Raises
    ------
    InputError                        a negative count, or a rate that is not finite

    Examples
    --------
    >>> from testbed.policies.transformer.config import TransformerConfig
    >>> model = Transformer.random(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), seed=0)
    >>> line = steps(model, lambda m: sum(w.square().sum() for w in m.parameters()) / 2, count=2, rate=0.5)
    >>> torch.allclose(line[2].vector(), model.vector() / 4)
    True
    """
    if count < 0 or not math.isfinite(rate):
        raise InputError("`count` must be >= 0 and `rate` finite", found=f"{count}, {rate}")
    out = [model.copy()]
    for _ in range(count):
        now = out[-1].copy()
        gradients = torch.autograd.grad(loss(now), now.parameters(), allow_unused=True)
        length = torch.stack([g.norm() for g in gradients if g is not None]).norm() if normalized else 1.0
        with torch.no_grad():
            for weight, gradient in zip(now.parameters(), gradients, strict=True):
                if gradient is not None:
                    weight -= rate * gradient / length
        out.append(now)
    return out
