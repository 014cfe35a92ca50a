"""Exact expected updates of groups: every composition of a group of M responses, and the mean of what it contributes.

Baselines and normalizers computed within a group tie its responses together, so the mean of one response's term says
nothing; what a group does on average is a sum over multisets. How a group weighs its tokens is not decided here: the
function that trains is asked (`testbed.estimators.group_gradient`), for all compositions at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError, TooLarge
from testbed.core.shapes import require_shape
from testbed.exact.law import ExactLaw
from testbed.exact.moments import MULTISET_LIMIT, multisets
from testbed.policies.base import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompositions:
    """All groups that can be drawn, up to the order of their responses.

    Attributes
    ----------
    batch : SegmentedBatch        C * M rows: the groups one after another, `group` = number of the composition
    responses : SegmentedBatch    the N distinct responses
    index : Int64[Tensor, "C M"]  which responses each composition holds
    probs : Float[Tensor, "C"]    probability of each composition
    """

    batch: SegmentedBatch
    responses: SegmentedBatch
    index: Int64[Tensor, "C M"]
    probs: Float[Tensor, " C"]

    def expect(self, values: Float[Tensor, "C ..."]) -> Float[Tensor, "..."]:
        """Exact expectation of one value per group."""
        return torch.tensordot(self.probs, values.double(), dims=1)


def group_compositions(parts: Sequence[tuple[ExactLaw, int]], limit: int = MULTISET_LIMIT) -> GroupCompositions:
    """All groups of sum_k n_k independent responses to one prompt, n_k of them drawn from law k.

        P(group) = prod_k n_k! prod_y P_k(y)^{c_ky} / c_ky!

    Parameters
    ----------
    parts : pairs of a law and how many responses come from it (0 allowed); laws of one horizon
    limit : most compositions to list

    Returns
    -------
    GroupCompositions   rows of a group in the order of the parts

    Raises
    ------
    InputError   no response at all, a negative number
    TooLarge     more than `limit` compositions

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, pi)
    >>> groups = group_compositions([(law, 2)])
    >>> groups.index.tolist(), [round(p, 12) for p in groups.probs.tolist()]
    ([[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25])
    """
    sizes = [size for _, size in parts]
    if not parts or min(sizes) < 0 or sum(sizes) < 1:
        raise InputError("a group needs a number of responses >= 0 from each law, and at least one", found=sizes)
    responses = SegmentedBatch.concatenated([law.batch for law, _ in parts])
    index, probs, first = torch.zeros(1, 0, dtype=torch.int64), torch.ones(1, dtype=torch.float64), 0
    for law, size in parts:
        if size:
            more, p = multisets(law, size, limit)
            if len(probs) * len(p) > limit:
                raise TooLarge(
                    f"groups can be enumerated up to {limit:,} compositions",
                    found=f"{len(probs):,} times {len(p):,}",
                    hint="fewer responses, or smaller groups",
                )
            index = torch.cat([index.repeat_interleave(len(p), 0), (more + first).repeat(len(probs), 1)], 1)
            probs = probs.repeat_interleave(len(p)) * p.repeat(len(probs))
        first += law.log_prob.shape[0]
    number = torch.arange(len(probs)).repeat_interleave(sum(sizes))
    batch = responses.select(index.reshape(-1)).replaced(group=number)
    return GroupCompositions(batch=batch, responses=responses, index=index, probs=probs)


def expected_group_update(
    groups: GroupCompositions, pi: Policy, coefficient: Float[Tensor, "R T"]
) -> Float[Tensor, "..."]:
    """Mean over all groups of the update sum_{i,t} c_it grad log pi(y_it | h_it).

    Parameters
    ----------
    groups : GroupCompositions
    pi : Policy with parameters           the scores are taken in its parameters
    coefficient : Float[Tensor, "R T"]    c of each token of `groups.batch`, for instance `group_coefficients` of it

    Returns
    -------
    Float64[Tensor, "*parameters"]

    Raises
    ------
    InputError   a coefficient of another shape

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> from testbed.estimators.group_gradient import group_coefficients
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, pi)
    >>> groups = group_compositions([(law, 2)])
    >>> c = group_coefficients(groups.batch, "group_mean", normalizer="constant", constant=2.0)
    >>> expected_group_update(groups, pi, c)  # half of (-1/4, 1/4)
    tensor([[-0.1250,  0.1250]], dtype=torch.float64)
    """
    require_shape("coefficient", coefficient, tuple(groups.batch.mask.shape))
    share = groups.probs.repeat_interleave(groups.index.shape[1])[:, None] * coefficient.double()
    # the update is linear in the coefficient: collect it per distinct response, take each score once
    total = torch.zeros(groups.responses.mask.shape, dtype=torch.float64).index_add_(0, groups.index.reshape(-1), share)
    return pi.score_terms(groups.responses.tokens, total).sum(0)
