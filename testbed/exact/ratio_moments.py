"""Moments of one token's ratio, and averages under a law tilted by a power of a weight: the two factors of every growth law.

Neighbors: `second_moments.py` chains them along segments, `testbed.stats.weight_statistics` takes samples as well.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError


def ratio_moment(
    log_target: Float[Tensor, "... V"], log_behavior: Float[Tensor, "... V"], power: float | int = 2.0
) -> Float[Tensor, "..."]:
    """Moment of one token's ratio under the behavior that draws it.

        E_mu[rho^power] = sum_y mu(y) (pi(y) / mu(y))^power

    Power 2 is d2, power 1 the target's mass on what the behavior can draw, power 1/2 the Bhattacharyya coefficient.

    Parameters
    ----------
    log_target, log_behavior : Float[Tensor, "... V"]   next-token laws in nats; -inf is a probability of 0
    power : float                                       > 0

    Returns
    -------
    Float64[Tensor, "..."]   one moment per law; inf where it overflows

    Raises
    ------
    InputError   power <= 0, or NaN in a law
    Assumes      nothing; words the behavior cannot draw are left out, so without support d2 says too little
    Numerics     in logarithms; no ratio is formed
    References   Bhattacharyya 1943, Bull. Calcutta Math. Soc. 35:99

    Examples
    --------
    >>> pi, mu = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.8, 0.2]).log()
    >>> round(float(ratio_moment(pi, mu)), 4), round(float(ratio_moment(pi, mu, 0.5)), 4)
    (1.5625, 0.9487)
    """
    return powered_measure(log_target, log_behavior, power).sum(-1)


def powered_measure(log_target: Tensor, log_behavior: Tensor, power: float | int) -> Float[Tensor, "... V"]:
    """mu(y) rho(y)^power of each word, 0 where mu(y) = 0: the summands of `ratio_moment`.

    Raises
    ------
    InputError   power <= 0, or NaN in a law

    Examples
    --------
    >>> powered_measure(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]).log(), 2.0)
    tensor([0.2500, 0.0000], dtype=torch.float64)
    """
    if not power > 0:
        raise InputError("`power` must be > 0", found=power)
    above, below = log_target.double(), log_behavior.double()
    if bool(above.isnan().any()) or bool(below.isnan().any()):
        raise InputError("a law must not hold NaN", found=f"{int(above.isnan().sum() + below.isnan().sum())} NaN")
    drawn = ~torch.isneginf(below)
    safe = torch.where(drawn, below, 0.0)
    return torch.where(drawn, safe + power * (above - safe), float("-inf")).exp()


def tilted_mean(
    values: Float[Tensor, "N ..."],
    log_prob: Float[Tensor, " N"],
    log_weight: Float[Tensor, "N ..."],
    power: float | int = 2.0,
) -> Float[Tensor, "..."]:
    """Average under a law tilted by a power of a weight.

        E_nu[v],    nu proportional to mu W^power

    Power 2 gives the law under which second moments multiply (S9-S11), power 1 with exact weights the target's own law.

    Parameters
    ----------
    values : Float[Tensor, "N ..."]         one per outcome
    log_prob : Float[Tensor, " N"]          nats, up to a constant; conditioning is leaving rows out
    log_weight : Float[Tensor, "N ..."]     nats; -inf is a weight of 0; shaped like `values`

    Returns
    -------
    Float64[Tensor, "..."]

    Raises
    ------
    InputError   a weight that is 0 on every outcome: there is no tilted law
    Numerics     in logarithms: weights of any size

    Examples
    --------
    >>> log_prob, log_weight = torch.log(torch.tensor([0.8, 0.2])), torch.log(torch.tensor([0.5, 3.0]))
    >>> round(float(tilted_mean(torch.tensor([0.0, 1.0]), log_prob, log_weight)), 6)
    0.9
    """
    shape = (-1,) + (1,) * (log_weight.dim() - 1)
    exponent = log_prob.double().reshape(shape) + power * log_weight.double()
    if bool((exponent.amax(0) == float("-inf")).any()):
        raise InputError("a tilted law needs a weight that is not 0 everywhere", found="weight 0 on every outcome")
    nu = torch.softmax(exponent, 0)
    return torch.where(nu > 0, nu * values.double(), 0.0).sum(0)
