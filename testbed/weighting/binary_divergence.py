"""Divergence of two laws seen through one token: it is drawn or it is not, so each law is a coin.

Two rules gate on it (`kpop`, `dppo_kl`). Everything is float64 whatever the input's dtype. A probability recorded as
exactly 1 says only that 1 - p was too small to be seen, so 1 - p counts as at least 1e-8: without that floor, one engine
rounding to 1 and the other to 1 - 1e-9 would be infinitely far apart; with it in float32, 1 - 1e-8 is 1 again, 0 log(0/0)
is NaN, and a token both engines are sure of is rejected.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.numerics import log1m_exp

RESOLUTION = 1e-8  # smallest 1 - p that is told apart from 0


def binary_kl(logp_first: Float[Tensor, "..."], logp_second: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Kullback-Leibler divergence of two coins, from the log-probabilities of their first sides.

        KL(a||b) = a log(a/b) + (1-a) log((1-a)/(1-b)),  1-a and 1-b at least 1e-8

    Parameters
    ----------
    logp_first, logp_second : Float[Tensor, "..."]    log a and log b, nats, <= 0; -inf is allowed

    Returns
    -------
    Float64[Tensor, "..."]     nats; 0 where the two agree, inf where b = 0 < a, never NaN
    Numerics       absolute error about 1e-15; computed in float64
    References     the gate of KPop (Ling/Ring 2.6 report); DPPO, arXiv 2602.04879

    Examples
    --------
    >>> a, b = torch.log(torch.tensor([[0.5, 1.0, 0.9]])), torch.log(torch.tensor([[0.25, 1.0, 1.0]]))
    >>> binary_kl(a, b)
    tensor([[0.1438, 0.0000, 1.5170]], dtype=torch.float64)
    """
    top = math.log1p(-RESOLUTION)
    first, second = logp_first.double().clamp(max=top), logp_second.double().clamp(max=top)
    share = first.exp()
    drawn = torch.where((share > 0) & (first != second), share * (first - second), 0.0)
    return drawn - torch.expm1(first) * (log1m_exp(first) - log1m_exp(second))
