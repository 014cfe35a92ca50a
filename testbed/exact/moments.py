"""Exact moments of per-response terms, and exact laws of batch statistics by enumerating multisets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, lgamma

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError, TooLarge
from testbed.exact.law import ExactLaw

MULTISET_LIMIT = 2_000_000


@dataclass(frozen=True, slots=True)
class Moments:
    """Elementwise mean, variance and second moment of one term (same shape as a term)."""

    mean: Float[Tensor, "..."]
    variance: Float[Tensor, "..."]
    second: Float[Tensor, "..."]


def moments(law: ExactLaw, terms: Float[Tensor, "N ..."]) -> Moments:
    """Exact moments of per-response terms under a law.

    mean = sum_y P(y) g(y);  second = sum_y P(y) g(y)^2;  variance = sum_y P(y) (g(y) - mean)^2

    Parameters
    ----------
    law : ExactLaw with N rows
    terms : Float[Tensor, "N ..."]   one term per response

    Raises
    ------
    InputError   if the number of terms is not the number of responses

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 2.0]), pi, pi)
    >>> m = moments(law, law.batch.reward)
    >>> float(m.mean), float(m.variance), float(m.second)
    (1.0, 1.0, 2.0)
    """
    if terms.shape[0] != law.log_prob.shape[0]:
        raise InputError(
            "there must be one term per response of the law", found=f"{terms.shape[0]} for {law.log_prob.shape[0]}"
        )
    values = terms.double()
    mean = law.expect(values)
    return Moments(mean, law.expect((values - mean) ** 2), law.expect(values**2))


def multisets(law: ExactLaw, n: int, limit: int = MULTISET_LIMIT) -> tuple[Int64[Tensor, "M n"], Float[Tensor, " M"]]:
    """All multisets of n responses with their multinomial probabilities n!/prod(c_i!) prod p_i^{c_i}.

    Raises
    ------
    TooLarge   more than `limit` multisets: C(N+n-1, n), printed
    """
    atoms = law.log_prob.shape[0]
    count = comb(atoms + n - 1, n)
    if count > limit:
        raise TooLarge(
            f"batches can be enumerated up to {limit:,} multisets",
            found=f"C({atoms}+{n}-1, {n}) = {count:,} for {atoms} responses and batches of {n}",
            hint="fewer responses, a smaller batch, or sample batches",
        )
    index = torch.tensor(list(combinations_with_replacement(range(atoms), n)), dtype=torch.int64).reshape(count, n)
    log_prob = law.log_prob[index].sum(1) + lgamma(n + 1)
    run = torch.ones(
        count, dtype=torch.float64
    )  # length of the current run of equal indices; log prod c_i! = sum log run
    for j in range(1, n):
        run = torch.where(index[:, j] == index[:, j - 1], run + 1, torch.ones_like(run))
        log_prob = log_prob - run.log()
    return index, log_prob.exp()


def batch_statistic(
    law: ExactLaw,
    n: int,
    statistic: Callable[[Int64[Tensor, "M n"]], Float[Tensor, "M ..."]],
    limit: int = MULTISET_LIMIT,
) -> Moments:
    """Exact moments of a symmetric function of a batch of n independent responses.

    Parameters
    ----------
    statistic : maps row indices [M, n] of `law.batch` to one value [M, ...] per batch; must not depend on the order

    Raises
    ------
    TooLarge     more than `limit` multisets (the message prints how many)
    InputError   the probabilities of the multisets do not sum to 1

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, pi)
    >>> m = batch_statistic(law, 2, lambda index: law.batch.reward[index].mean(1))
    >>> round(float(m.mean), 12), round(float(m.variance), 12)
    (0.5, 0.125)
    """
    if n < 1:
        raise InputError("`n` must be >= 1", found=n)
    index, prob = multisets(law, n, limit)
    if abs(float(prob.sum()) - 1) > 1e-9:
        raise InputError("the multisets' probabilities must sum to 1", found=float(prob.sum()))
    values = statistic(index).double()
    mean = torch.tensordot(prob, values, dims=1)
    second = torch.tensordot(prob, values**2, dims=1)
    return Moments(mean, torch.tensordot(prob, (values - mean) ** 2, dims=1), second)
