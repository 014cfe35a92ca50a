"""Laws of selected and of pooled data: what a replay buffer holds when it keeps some responses of several prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.exact.law import ExactLaw


def conditioned(law: ExactLaw, keep: Bool[Tensor, " N"]) -> tuple[ExactLaw, float]:
    """Law of the responses that are kept, and the probability of keeping one.

        P(y | kept) = P(y) 1{kept} / P(kept)

    Parameters
    ----------
    law : ExactLaw with N rows
    keep : Bool[Tensor, " N"]   which rows are kept

    Returns
    -------
    (ExactLaw, float)           recorded log-probs stay as they were recorded: a selection leaves no trace in them

    Raises
    ------
    InputError   nothing is kept with positive probability; a mask of another shape

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.25, 0.75]]))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[1.0, 0.0]), pi, pi)
    >>> kept, probability = conditioned(law, law.batch.reward == 1)
    >>> kept.probs.tolist(), round(probability, 12)
    ([1.0], 0.25)
    """
    require_shape("keep", keep, (law.log_prob.shape[0],))
    log_mass = torch.logsumexp(law.log_prob[keep], 0)
    if not bool(torch.isfinite(log_mass)):
        raise InputError("a selection must keep something with positive probability", found="probability 0")
    selected = ExactLaw(batch=law.batch.select(keep), log_prob=law.log_prob[keep] - log_mass, branch=law.branch[keep])
    return selected, float(log_mass.exp())


def pooled(laws: Sequence[ExactLaw], shares: Sequence[float]) -> ExactLaw:
    """Law of one response of a pool in which prompt x has the given share; `group` is the prompt's number.

        P(x, y) = share_x P_x(y)

    Parameters
    ----------
    laws : one per prompt, all of one horizon
    shares : one per prompt, >= 0, sum 1

    Returns
    -------
    ExactLaw   rows grouped by prompt; prompts of share 0 are left out

    Raises
    ------
    InputError   not one share per law; shares that are negative or do not sum to 1

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> pi = TabularPolicy(torch.zeros(1, 2))
    >>> law = enumerate_law(PrefixTree(2, 1, rewards=[1.0, 0.0]), pi, pi)
    >>> pool = pooled([law, law], [0.25, 0.75])
    >>> pool.probs, pool.batch.group.tolist()
    (tensor([0.1250, 0.1250, 0.3750, 0.3750], dtype=torch.float64), [0, 0, 1, 1])
    """
    if len(laws) != len(shares) or not laws:
        raise InputError("there must be one share per law, and at least one", found=f"{len(shares)} for {len(laws)}")
    share = torch.tensor(shares, dtype=torch.float64)
    if bool((share < 0).any()) or abs(float(share.sum()) - 1) > 1e-9:
        raise InputError("`shares` must be >= 0 and sum to 1", found=list(shares))
    used = [x for x in range(len(laws)) if share[x] > 0]
    batches = [laws[x].batch.replaced(group=torch.full_like(laws[x].batch.group, x)) for x in used]
    return ExactLaw(
        batch=SegmentedBatch.concatenated(batches),
        log_prob=torch.cat([laws[x].log_prob + share[x].log() for x in used]),
        branch=torch.cat([laws[x].branch for x in used]),
    )
