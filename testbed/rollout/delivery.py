"""What the clock hands to the trainer: a batch, when, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.clockwork.response_table import ResponseTable

ENGINE = 0  # there is one generation engine


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A batch as the trainer takes it.

    Attributes
    ----------
    batch : SegmentedBatch           `version`, `engine`, and `segment`: the runs of one version; replayed responses first,
                                     then the fresh in the order of admission. `group` is the prompt. `logp_behavior` is
                                     what the engine gave each token; `logp_target` repeats it unless a target was given
    time : float                     simulated seconds since the start of the run
    version : int                    updates done before this one
    waiting : float                  seconds that the trainer stood idle before it
    dropped : int                    responses lost since the last delivery
    replayed : Bool[Tensor, " B"]    which responses were delivered before
    response : Int64[Tensor, " B"]   number of each response in the run
    log : dict                       counts since the last delivery and levels at this one (see `Clock`)
    """

    batch: SegmentedBatch
    time: float
    version: int
    waiting: float
    dropped: int
    replayed: Bool[Tensor, " B"]
    response: Int64[Tensor, " B"]
    log: dict[str, int | float]

    @property
    def staleness(self) -> Int64[Tensor, "B T"]:
        """Updates between writing and using each token; 0 on padding."""
        written = self.batch.require("version", "staleness")
        return torch.where(self.batch.mask, self.version - written, 0)


def assembled(table: ResponseTable, ids: Sequence[int], env: Environment, target: Policy | None) -> SegmentedBatch:
    """Batch of these responses, in this order, rewarded."""
    rows = table.rows(ids)
    tokens, version, mask, group = table.tokens[rows], table.version[rows], table.mask(rows), table.group[rows]
    logp = table.logp[rows]
    scored = logp
    if target is not None:
        with torch.no_grad():
            scored = torch.where(mask, target.at(group).score(tokens).to(logp), 0.0)
    return SegmentedBatch(
        tokens=tokens,
        mask=mask,
        segment=runs(version, mask),
        logp_target=scored,
        logp_behavior=logp,
        reward=env.reward(tokens, mask, group),
        group=group,
        version=version,
        engine=torch.full_like(version, ENGINE),
        token_reward=env.token_reward(tokens, mask, group),
    )


def runs(version: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Int64[Tensor, "B T"]:
    """Number the runs of equal versions of each response: 0, 1, ...; -1 on padding.

    Examples
    --------
    >>> runs(torch.tensor([[3, 3, 5, -1]]), torch.tensor([[True, True, True, False]])).tolist()
    [[0, 0, 1, -1]]
    """
    changed = torch.zeros_like(version)
    changed[:, 1:] = (version[:, 1:] != version[:, :-1]).long()
    return torch.where(mask, changed.cumsum(1), -1)
