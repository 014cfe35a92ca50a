"""The exact law of a product of independent, identically distributed token ratios, at any length.

When every prefix has the same two next-token laws, the weight of a response depends on how often each word occurs, not on
where: C(T + V - 1, V - 1) outcomes instead of V^T. This is the world in which sequence weights can be watched collapsing
at lengths no enumeration of responses reaches (S12).
"""

from __future__ import annotations

from math import comb, lgamma

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError, TooLarge

COUNT_LIMIT = 1_000_000
HALF = 0.5 - 1e-12  # a median found from probabilities summed in float64: a half is reached up to rounding


def iid_weight_law(
    target: Float[Tensor, " V"], behavior: Float[Tensor, " V"], length: int
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
    """Log-weights log W_T of T independent tokens with their probabilities under the behavior.

        P(c) = T! / prod_y c_y!  prod_y mu(y)^{c_y},     log W = sum_y c_y log(pi(y) / mu(y))

    Parameters
    ----------
    target, behavior : Float[Tensor, "V"]   next-token laws (probabilities); words the behavior cannot draw do not occur
    length : int                            T >= 0

    Returns
    -------
    (log_weight, probs)   float64, one entry per vector of word counts; log_weight is -inf where the target cannot follow

    Raises
    ------
    TooLarge     more than a million vectors of counts
    InputError   T < 0

    Examples
    --------
    >>> pi, mu = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    >>> log_weight, probs = iid_weight_law(pi, mu, 2)
    >>> [round(x, 4) for x in log_weight.exp().tolist()], [round(x, 4) for x in probs.tolist()]
    ([0.25, 1.0, 4.0], [0.4444, 0.4444, 0.1111])
    """
    if length < 0:
        raise InputError("`length` must be >= 0", found=length)
    drawn = behavior > 0
    mu, pi = behavior[drawn].double(), target[drawn].double()
    size = comb(length + mu.numel() - 1, length)
    if size > COUNT_LIMIT:
        raise TooLarge(
            f"a law of word counts can be listed up to {COUNT_LIMIT:,} outcomes",
            found=f"C({length}+{mu.numel()}-1, {length}) = {size:,}",
            hint="a shorter response or fewer words",
        )
    counts = _counts(mu.numel(), length)
    log_prob = lgamma(length + 1) - torch.lgamma(counts + 1).sum(1) + counts @ mu.log()
    log_weight = torch.where(counts > 0, counts * (pi / mu).log(), 0.0).sum(1)
    return log_weight, log_prob.exp()


def _counts(words: int, total: int) -> Float[Tensor, "M V"]:
    """All vectors of `words` counts that sum to `total`."""
    rows = torch.zeros(1, 0, dtype=torch.float64)
    for _ in range(words - 1):
        left = (total - rows.sum(1)).long()
        repeats = left + 1
        start = repeats.cumsum(0) - repeats
        last = torch.arange(int(repeats.sum())) - start.repeat_interleave(repeats)
        rows = torch.cat([rows.repeat_interleave(repeats, 0), last[:, None].double()], 1)
    return torch.cat([rows, (total - rows.sum(1))[:, None]], 1)


def lower_median(values: Float[Tensor, " M"], probs: Float[Tensor, " M"]) -> float:
    """Smallest value that is not exceeded with probability at least 1/2 (up to 1e-12).

    Raises
    ------
    InputError   no value, or probabilities below 1/2 in total

    Examples
    --------
    >>> lower_median(torch.tensor([4.0, 1.0, 0.25]), torch.tensor([1 / 9, 4 / 9, 4 / 9]))
    1.0
    """
    order = values.argsort()
    reached = probs.double()[order].cumsum(0) >= HALF
    if not bool(reached.any()):
        raise InputError("a median needs probabilities that sum to 1", found=f"{float(probs.sum()):.6g}")
    return float(values[order][int(reached.long().argmax())])
