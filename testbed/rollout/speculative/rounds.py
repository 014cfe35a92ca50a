"""What one round of a speculative rollout was: where responses stood, what was proposed, what the target said, what was kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.walk import Run

if TYPE_CHECKING:
    from testbed.rollout.speculative.drafters import Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round, as drafters and observers see it.

    Parameters
    ----------
    frontier : Frontier                    where the responses stood
    tree : DraftTree                       what was proposed
    log_probs : Float[Tensor, "b M V"]     the target's laws at root and places, the root's first
    states : Float[Tensor, "b M d"]        the stream that each law was read from
    run : Run                              what the verifier made of it
    emitted : Bool[Tensor, "b D"]          which tokens of the run the response kept
    """

    frontier: Frontier
    tree: DraftTree
    log_probs: Float[Tensor, "b M V"]
    states: Float[Tensor, "b M d"]
    run: Run
    emitted: Bool[Tensor, "b D"]

    def hits(self) -> tuple[Bool[Tensor, "b D"], Float[Tensor, "b D"], Bool[Tensor, "b D"]]:
        """Whether each emitted token was a candidate, the target's probability that it would be, and where there were any.

        For membership, hit - coverage is a martingale difference with variance coverage (1 - coverage), whatever the drafter
        knew of the past.
        """
        tree, place = self.tree, self.run.places()
        child = (tree.parent[:, None] == place[:, :, None] - 1) & (tree.tokens >= 0)[:, None]  # [b, D, N]
        law = self.log_probs.gather(1, place[:, :, None].expand(-1, -1, self.log_probs.shape[-1])).exp()
        index = tree.tokens.clamp(min=0)[:, None].expand(-1, place.shape[1], -1)
        coverage = torch.where(child, law.gather(2, index), 0.0).sum(-1)
        hit = (child & (tree.tokens[:, None] == self.run.tokens[:, :, None])).any(-1)
        return hit & self.emitted, torch.where(self.emitted, coverage, 0.0), self.emitted & child.any(-1)
