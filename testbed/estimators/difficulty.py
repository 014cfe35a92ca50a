"""How dividing by the group's standard deviation reweights prompts by their difficulty, for rewards 0 and 1."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError


def difficulty_factor(success: Float[Tensor, "..."], size: int, ddof: int = 0) -> Float[Tensor, "..."]:
    """Factor by which standard-deviation scaling multiplies the gradient of a prompt of success rate p.

        c_M(p) = E[sigma_M] / (p (1 - p)) = sum_k C(M,k) p^(k-1) (1-p)^(M-k-1) sqrt(k (M-k)) / M,   k = 1..M-1

    sigma_M is the population standard deviation of M independent rewards 0 or 1; groups without spread contribute 0 and
    still count. With the sample's (ddof = 1) the factor is sqrt((M-1)/M) of this.

    Parameters
    ----------
    success : Float[Tensor, "..."]   p in [0, 1]; at the ends the limit, sqrt(M-1)
    size : int                       M >= 1
    ddof : 0 or 1

    Returns
    -------
    Float64[Tensor, "..."]   0 for M = 1, 1 for M = 2 and sqrt 2 for M = 3 whatever p is; 1/sqrt(p (1-p)) as M grows

    Raises
    ------
    InputError   a rate outside [0, 1], M < 1, another ddof

    Examples
    --------
    >>> p = torch.tensor([0.5, 0.1, 0.0], dtype=torch.float64)
    >>> difficulty_factor(p, 2), difficulty_factor(p, 8)
    (tensor([1., 1., 1.], dtype=torch.float64), tensor([1.8557, 2.3277, 2.6458], dtype=torch.float64))
    """
    p = success.double()
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("`success` must be a rate in [0, 1]", found=p.tolist())
    if size < 1 or ddof not in (0, 1):
        raise InputError("`size` must be >= 1 and `ddof` 0 or 1", found=f"{size} and {ddof}")
    k = torch.arange(1, size, dtype=torch.float64)
    m = torch.tensor(float(size), dtype=torch.float64)
    ways = torch.lgamma(m + 1) - torch.lgamma(k + 1) - torch.lgamma(m - k + 1)
    chance = ways + torch.xlogy(k - 1, p[..., None]) + torch.special.xlog1py(m - k - 1, -p[..., None])
    spread = (k * (m - k)).sqrt() / m
    return (chance.exp() * spread).sum(-1) * ((m - ddof) / m).clamp(min=0).sqrt()
