"""What a finished-first cut keeps, exactly: the probability of being among the first m of n to end, given one's length.

The sampler is `testbed.rollout.cut_batches.finished_first`: n independent responses, one tick per token, ties at random.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.exact.law import ExactLaw


def length_law(law: ExactLaw) -> Float[Tensor, " L"]:
    """Probability of each length 0..T of a response (tokens, the end token included).

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.5, 0.5]]))
    >>> length_law(enumerate_law(PrefixTree(2, 2, rewards=[0.0] * 4, eos=1), pi, pi))
    tensor([0.0000, 0.3000, 0.7000], dtype=torch.float64)
    """
    probs = torch.zeros(law.batch.horizon + 1, dtype=torch.float64)
    return probs.index_add_(0, law.batch.lengths, law.probs)


def inclusion_probabilities(lengths: Float[Tensor, " L"], n: int, m: int) -> Float[Tensor, " L"]:
    """Probability that a response of each length is among the first m of n to end, ties at random.

        Incl(l) = E[min(1, (m - Below)+ / (Ties + 1))]
        (Below, Ties, Above) ~ Multinomial(n - 1; P(len < l), P(len = l), P(len > l))

    Parameters
    ----------
    lengths : Float[Tensor, " L"]   probability of each length, shortest first; sums to 1
    n, m : int                      responses drawn and kept, 1 <= m <= n

    Returns
    -------
    Float64[Tensor, " L"]           in (0, 1] wherever the length has positive probability; nonincreasing in the length

    Raises
    ------
    InputError   m < 1 or m > n; probabilities that are negative or do not sum to 1 (tolerance 1e-9)

    Assumes      the n responses are independent and of one law
    Gives        sum_l n P(l) Incl(l) = m; 1 for m = n; m/n when all lengths are equal (S8)
    Numerics     float64, log-space multinomial, no cancellation; cost O(L n m)

    Examples
    --------
    >>> inclusion_probabilities(torch.tensor([0.5, 0.5]), n=2, m=1)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    if not 1 <= m <= n:
        raise InputError(f"`m` must lie in 1..{n}, the number of responses", found=m)
    p = lengths.double()
    if not bool((p >= 0).all()) or abs(float(p.sum()) - 1) > 1e-9:
        raise InputError("`lengths` must be probabilities that sum to 1", found=f"sum {float(p.sum()):.12g}")
    shorter = torch.cat([torch.zeros(1, dtype=p.dtype), p.cumsum(0)[:-1]])
    longer = torch.cat([p.flip(0).cumsum(0).flip(0)[1:], torch.zeros(1, dtype=p.dtype)])
    below = torch.arange(m, dtype=p.dtype)[:, None]  # m or more below leave no place
    ties = torch.arange(n, dtype=p.dtype)
    above = n - 1 - below - ties
    possible = above >= 0
    above = above.clamp(min=0)
    ways = torch.lgamma(torch.tensor(float(n), dtype=p.dtype))
    ways = ways - torch.lgamma(below + 1) - torch.lgamma(ties + 1) - torch.lgamma(above + 1)
    chance = ((m - below) / (ties + 1)).clamp(max=1)
    answer = torch.empty_like(p)
    for length, (less, same, more) in enumerate(zip(shorter, p, longer, strict=True)):
        log_prob = ways + torch.xlogy(below, less) + torch.xlogy(ties, same) + torch.xlogy(above, more)
        answer[length] = torch.where(possible, log_prob.exp() * chance, 0.0).sum()
    return answer


def inclusion_weights(law: ExactLaw, n: int, m: int) -> Float[Tensor, " N"]:
    """Weight of each response that makes a finished-first batch unbiased for the law it was drawn from.

        w(y) = (m / n) / Incl(len y)

    Parameters
    ----------
    law : ExactLaw   of one response
    n, m : int       responses drawn and kept, 1 <= m <= n

    Returns
    -------
    Float64[Tensor, " N"]   one weight per row of the law; largest on the longest responses

    Raises
    ------
    InputError   m < 1 or m > n

    Gives        E[(1/m) sum_kept w f] = E[f] for every f, by no other function of the response alone (S8)

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> law = enumerate_law(PrefixTree(2, 2, rewards=[0.0] * 4, eos=1), pi, pi)
    >>> law.batch.lengths.tolist(), inclusion_weights(law, n=2, m=1)
    ([2, 2, 1], tensor([2.0000, 2.0000, 0.6667], dtype=torch.float64))
    """
    return (m / n) / inclusion_probabilities(length_law(law), n, m)[law.batch.lengths]
