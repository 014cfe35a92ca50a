"""M2PO: PPO's surrogate with a window just tight enough for a budget on the second moment of the log ratio.

Only *harmful* tokens count, those already moved the way their advantage pushes: A > 0 with r > 1, A < 0 with r < 1.
The window [e^-tau, e^tau] is the widest for which the clipped log ratios of harmful tokens have mean square <= budget,
and it is never tighter than [1 - eps_low, 1 + eps_high]: with fresh data nothing is clipped that PPO's wide window keeps.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.weighting.clip import weigh_dual_clip
from testbed.weighting.limits import at_least
from testbed.weighting.weights import Request, Weights


def harmful(log_ratio: Float[Tensor, "B T"], advantage: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Tokens already moved the way their advantage pushes them.

    Examples
    --------
    >>> harmful(torch.tensor([[0.1, -0.1, 0.1, -0.1]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    tensor([[ True, False, False,  True]])
    """
    return ((advantage > 0) & (log_ratio > 0)) | ((advantage < 0) & (log_ratio < 0))


def budget_threshold(log_ratio: Float[Tensor, "..."], budget: float | int) -> float:
    """Largest tau for which log ratios clipped at tau in absolute value have mean square <= budget.

        mean min(l^2, tau^2) = budget

    Parameters
    ----------
    log_ratio : Float[Tensor, "..."]   nats; every entry counts; -inf allowed
    budget : float                     nats^2, >= 0

    Returns
    -------
    float   nats; inf where the mean square is within the budget, or there is nothing to clip
    Numerics     sorted once, in float64: tau^2 = (n budget - sum of the k smallest squares) / (n - k) for the first k at
                 which it does not exceed the next square

    Examples
    --------
    >>> round(budget_threshold(torch.tensor([0.1, 0.2, 1.0, -torch.inf]), 0.04), 6)  # .01 + .04 + 2 tau^2 = 4 * .04
    0.234521
    >>> budget_threshold(torch.tensor([0.1, 0.2]), 0.04)
    inf
    """
    square = log_ratio.detach().double().square().flatten().sort().values
    n = square.numel()
    total = n * at_least("budget", budget, 0.0)
    if n == 0 or float(square.sum()) <= total:
        return math.inf
    below = torch.cat([square.new_zeros(1), square.cumsum(0)[:-1]])
    candidate = (total - below) / torch.arange(n, 0, -1, dtype=torch.float64, device=square.device)
    first = int((candidate <= square).to(torch.uint8).argmax())
    return math.sqrt(max(float(candidate[first]), 0.0))


def window(tau: float, eps_low: float, eps_high: float) -> tuple[float, float]:
    """Clip widths of [e^-tau, e^tau], no tighter than [1 - eps_low, 1 + eps_high].

    Examples
    --------
    >>> window(0.1, 0.3, 0.5), window(math.inf, 0.3, 0.5), [round(x, 4) for x in window(1.0, 0.3, 0.5)]
    ((0.3, 0.5), (1.0, inf), [0.6321, 1.7183])
    """
    up = math.expm1(tau) if tau < 700.0 else math.inf
    return max(-math.expm1(-tau), eps_low), max(up, eps_high)


def weigh_m2po(request: Request, budget: object, eps_low: object, eps_high: object, tau: object) -> Weights:
    """Weight: the ratio where PPO's surrogate has a gradient, in the window the budget leaves."""
    log_ratio, advantage, mask = request.log_ratio(), request.signed(), request.batch.mask
    least = at_least("eps_low", eps_low, 0.0), at_least("eps_high", eps_high, 0.0)
    limit = at_least("budget", budget, 0.0)
    if isinstance(tau, str):
        if tau != "auto":
            raise InputError("`tau` of rule `m2po` must be a number >= 0 or 'auto'", found=repr(tau))
        threshold = budget_threshold(log_ratio[harmful(log_ratio, advantage) & mask], limit)
    else:
        threshold = at_least("tau", tau, 0.0)
    return weigh_dual_clip(request, *window(threshold, *least), math.inf)
