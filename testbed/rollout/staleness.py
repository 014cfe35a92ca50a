"""Keeping responses by age: what is kept of each source, what is lost, and an empty result that says so.

Age goes with length: a response that takes long to write starts under an older policy. Dropping by age therefore drops
long responses, and recorded ratios do not show it, even where every ratio is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape


@dataclass(frozen=True, slots=True, eq=False)
class StalenessSelection:
    """What a limit on age left.

    Attributes
    ----------
    batch : SegmentedBatch              the kept responses, in their order; no rows when nothing was fresh enough
    rows : Int64[Tensor, " kept"]       their row numbers
    kept, dropped : dict[int, int]      responses of each source; every source that delivered one is a key of both
    """

    batch: SegmentedBatch
    rows: Int64[Tensor, " kept"]
    kept: dict[int, int]
    dropped: dict[int, int]

    @property
    def empty(self) -> bool:
        """Whether nothing was kept: a step without data, to be waited out rather than taken."""
        return self.rows.numel() == 0

    @property
    def starved(self) -> tuple[int, ...]:
        """Sources that delivered responses, none of which was kept."""
        return tuple(source for source, count in self.kept.items() if count == 0)


def staleness(batch: SegmentedBatch, current: int) -> Int64[Tensor, " B"]:
    """Updates between drawing and using the oldest token of each response: current - min_t version_t.

    Returns
    -------
    Int64[Tensor, " B"]   >= 0; 0 for a response without tokens

    Raises
    ------
    MissingField   no `version`
    InputError     a version below 0 or above `current` on a real token

    Examples
    --------
    >>> one = torch.ones(1, 2)
    >>> batch = SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=torch.tensor([[0, 1]]), logp_target=-one, logp_behavior=-one,
    ...     reward=torch.ones(1), group=torch.tensor([0]), version=torch.tensor([[3, 4]]))
    >>> staleness(batch, 5)
    tensor([2])
    """
    version = batch.require("version", "staleness")
    outside = batch.mask & ((version < 0) | (version > current))
    if bool(outside.any()):
        found = f"{int(outside.sum())} outside, first {int(version[outside][0])}"
        raise InputError(f"`version` must lie in 0..{current}, the current version, on real tokens", found=found)
    return (
        current - torch.where(batch.mask, version, current).amin(1) if batch.horizon else torch.zeros_like(batch.group)
    )


def select_by_staleness(
    batch: SegmentedBatch, current: int, limit: int, source: Int64[Tensor, " B"] | None = None
) -> StalenessSelection:
    """Keep the responses whose oldest token is at most `limit` updates old.

    Parameters
    ----------
    batch : SegmentedBatch                  needs `version`
    current : int                           version of the policy that is about to be updated
    limit : int                             >= 0; ties are kept
    source : Int64[Tensor, " B"] | None     what to count by (task, worker); None counts by `group`

    Returns
    -------
    StalenessSelection

    Raises
    ------
    MissingField, InputError   as `staleness`; a negative limit; a source of another shape
    Gives        the law of the kept responses is the drawing law given "young": biased wherever age and reward are
                 dependent, by Cov(w R, kept) / P(kept), which no weight on the recorded ratios can see

    Examples
    --------
    >>> one = torch.ones(2, 1)
    >>> batch = SegmentedBatch(
    ...     tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one, logp_behavior=-one,
    ...     reward=torch.ones(2), group=torch.tensor([7, 9]), version=torch.tensor([[3], [0]]))
    >>> found = select_by_staleness(batch, current=4, limit=2)
    >>> found.kept, found.dropped, found.starved, found.empty
    ({7: 1, 9: 0}, {7: 0, 9: 1}, (9,), False)
    """
    if limit < 0:
        raise InputError("`limit` must be >= 0", found=limit)
    origin = batch.group if source is None else source
    require_shape("source", origin, (batch.batch_size,))
    young = staleness(batch, current) <= limit
    kept = {int(s): int((young & (origin == s)).sum()) for s in origin.unique()}
    dropped = {s: int((origin == s).sum()) - count for s, count in kept.items()}
    return StalenessSelection(batch.select(young), torch.nonzero(young)[:, 0], kept, dropped)
