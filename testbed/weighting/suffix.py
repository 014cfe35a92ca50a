"""A gate on suffixes: once a response of negative advantage has left the trust region, what follows is not trained on.

After a token whose ratio passed the trigger, the target is in states the behavior's continuation says little about;
pushing that continuation down moves probability to who knows where. The gate is a function of the prefix alone, so it
can be read as a stopping time: everything up to and including the trigger is trained on, nothing after it.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.weighting.clip import clip_gate, clip_objective
from testbed.weighting.limits import at_least, band
from testbed.weighting.mask import mask_band
from testbed.weighting.weights import Request, Weights, finish


def before_trigger(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float | int, high: float | int
) -> Bool[Tensor, "B T"]:
    """Tokens with no earlier token of their response outside [low, high].

        keep_t = 1{low <= rho_s <= high for all s < t}

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]   nats per token
    mask : Bool[Tensor, "B T"]         padding triggers nothing
    low, high : float                  0 <= low <= high, on the ratio; ties do not trigger

    Examples
    --------
    >>> before_trigger(torch.tensor([[0.0, 1.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool), 0.0, 2.0)
    tensor([[ True,  True, False]])
    """
    fired = (~mask_band(log_ratio, low, high) & mask).long()
    return (fired.cumsum(1) - fired) == 0


def weigh_mu_grpo(
    request: Request, trigger_low: object, trigger_high: object, eps_low: object, eps_high: object
) -> Weights:
    """Weight: the ratio where PPO's surrogate has a gradient; 0 after a trigger where A < 0."""
    log_ratio, advantage = request.log_ratio(), request.signed()
    edges = band(trigger_low, trigger_high, ("trigger_low", "trigger_high"))
    shape = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0)
    active = clip_gate(log_ratio, advantage, *shape)
    trained = (advantage >= 0) | before_trigger(log_ratio, request.batch.mask, *edges)
    ratio = log_ratio.exp()
    objective = clip_objective(ratio, advantage, active, *shape)
    objective = torch.where(trained, objective, torch.zeros_like(objective))
    return finish(request, log_ratio, ratio, gate=active & trained, objective=objective)
