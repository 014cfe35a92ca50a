"""Several behaviors, several sample sizes, one target: weights that share each response among the behaviors that could draw it.

Each behavior j gets a share omega_j(y) of the response, the shares adding up to 1. The balance heuristic takes them in
proportion to n_j q_j(y); every response then counts p/q_mix, whichever behavior drew it, and a behavior that is close to
the target bounds the weights of all others. It needs the log-probability of a response under *every* behavior.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape


def balance_shares(logp_behaviors: Float[Tensor, "J N"], counts: Float[Tensor, " J"]) -> Float[Tensor, "J N"]:
    """Shares of the balance heuristic.

        omega_j(y) = n_j q_j(y) / sum_l n_l q_l(y)

    Parameters
    ----------
    logp_behaviors : Float[Tensor, "J N"]   log q_j(y), nats; -inf where behavior j cannot draw y
    counts : Float[Tensor, "J"]             n_j > 0, responses drawn from behavior j

    Returns
    -------
    Float[Tensor, "J N"]   adding up to 1 over j; 0 where no behavior can draw y

    Raises
    ------
    InputError   not one positive count per behavior

    Examples
    --------
    >>> balance_shares(torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log(), torch.tensor([1.0, 2.0]))
    tensor([[0.5000, 0.2500],
            [0.5000, 0.7500]])
    """
    log_part = logp_behaviors + _checked(counts, logp_behaviors).log()[:, None]
    log_total = torch.logsumexp(log_part, 0)
    return torch.where(torch.isfinite(log_total), log_part - log_total, log_part).exp()


def mixture_weight(
    logp_target: Float[Tensor, " N"], logp_behaviors: Float[Tensor, "J N"], counts: Float[Tensor, " J"]
) -> Float[Tensor, " N"]:
    """Weight p/q_mix of each response in the plain mean over all n = sum n_j of them, whichever behavior drew it.

        w(y) = p(y) / sum_j (n_j/n) q_j(y)  <=  (n/n_j) p(y)/q_j(y) for every j

    Parameters
    ----------
    logp_target : Float[Tensor, "N"]         log p(y), nats
    logp_behaviors, counts : as in `balance_shares`

    Returns
    -------
    Float[Tensor, "N"]   0 where no behavior can draw y (nothing is ever multiplied by it)

    Examples
    --------
    >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    >>> mixture_weight(p.log(), q.log(), torch.tensor([1.0, 1.0]))
    tensor([1.3333, 0.8000])
    """
    n = _checked(counts, logp_behaviors)
    require_shape("logp_target", logp_target, tuple(logp_behaviors.shape[1:]))
    log_mix = torch.logsumexp(logp_behaviors + (n / n.sum()).log()[:, None], 0)
    return torch.where(torch.isfinite(log_mix), logp_target - log_mix, -torch.inf).exp()


class SharedEstimate(NamedTuple):
    """Exact mean, variance, and mean contribution of each behavior, of an estimate that shares responses."""

    mean: Tensor
    variance: Tensor
    parts: Tensor  # [J], E of what the responses of behavior j add; they sum to `mean`


def shared_moments(
    values: Float[Tensor, " N"],
    logp_target: Float[Tensor, " N"],
    logp_behaviors: Float[Tensor, "J N"],
    counts: Float[Tensor, " J"],
    shares: Float[Tensor, "J N"],
) -> SharedEstimate:
    """Exact moments, on a finite law, of the multiple-importance estimate with any partition of unity.

        sum_j (1/n_j) sum_{i<=n_j} omega_j(y_ji) f(y_ji) p(y_ji)/q_j(y_ji),   y_ji ~ q_j independent
        mean = sum_j mu_j,   mu_j = sum_y omega_j f p,   variance = sum_j (1/n_j) (sum_y (omega_j f p)^2/q_j - mu_j^2)

    Parameters
    ----------
    values : Float[Tensor, "N"]              f(y)
    logp_target, logp_behaviors, counts : as in `mixture_weight`; every response of the finite law is listed
    shares : Float[Tensor, "J N"]            omega_j(y); any numbers: what goes unbiased is for the caller to claim

    Returns
    -------
    SharedEstimate   float64; what a behavior cannot draw adds nothing

    Raises
    ------
    InputError   wrong shapes

    Assumes        sum_j omega_j = 1, and omega_j f p = 0 wherever q_j = 0: then mean = E_p f
    References     Veach and Guibas 1995; Owen, Monte Carlo theory, methods and examples, theorem 9.8

    Examples
    --------
    >>> p, q, n = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([1.0, 1.0])
    >>> found = shared_moments(torch.tensor([1.0, -1.0]), p.log(), q.log(), n, balance_shares(q.log(), n))
    >>> round(float(found.variance), 6)
    0.18
    """
    n = _checked(counts, logp_behaviors).double()
    require_shape("shares", shares, tuple(logp_behaviors.shape))
    require_shape("values", values, tuple(logp_behaviors.shape[1:]))
    require_shape("logp_target", logp_target, tuple(logp_behaviors.shape[1:]))
    q = logp_behaviors.double().exp()
    ratio = torch.where(q > 0, logp_target.double() - logp_behaviors.double(), -torch.inf).exp()
    term = torch.where(ratio > 0, shares.double() * values.double() * ratio, torch.zeros((), dtype=torch.float64))
    parts = (q * term).sum(1)
    spread = (q * (term - parts[:, None]) ** 2).sum(1)
    return SharedEstimate(parts.sum(), (spread / n).sum(), parts)


def _checked(counts: Tensor, logp_behaviors: Tensor) -> Tensor:
    require_shape("counts", counts, (logp_behaviors.shape[0],))
    if not bool((counts > 0).all()) or not bool(torch.isfinite(counts).all()):
        raise InputError("`counts` must be positive and finite", found=counts.tolist())
    return counts.to(logp_behaviors.dtype)
