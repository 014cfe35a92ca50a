"""Membership: draw from the target and go on for as long as the draw was drafted.

The walk itself is the engine's; here it gets a proposal, and neither an end token nor a cap.
"""

from __future__ import annotations

import torch

from testbed.core.choices import Chooser
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verify.protocol import EMPTY, Proposal, Verified
from testbed.rollout.speculative.walk import Draws, membership_walk


def membership(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a draft by sampling the target at each node of the walk.

        y ~ p(. | node);  emit y;  if a child holds y, go there, else stop

    Parameters
    ----------
    proposal : Proposal   any tree; of siblings that hold one token the first counts. The drafter's law is not used
    chooser : Chooser     draws tokens only, with their keys (response, position)

    Returns
    -------
    Verified   [B] rows

    Assumes      the tree was chosen without seeing these draws; with keyed draws not even that (V2)
    Gives        the target's law (V4), and the most accepted tokens that any exact rule can have on a tree that was not drawn:
                 the sum of the nodes' path probabilities (V5). On a drawn chain of one token: sum of p q
    References   as in Medusa (arXiv 2401.10774, its exact variant) and FastGRPO (arXiv 2509.21792)

    Examples
    --------
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> sure = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log()
    >>> membership(chain(torch.tensor([[1]]), target=sure), RandomChooser(0)).tokens
    tensor([[1, 0]])
    """
    tree = DraftTree(
        tokens=proposal.tokens,
        parent=proposal.parent,
        depth=proposal.depth,
        log_weight=torch.zeros(proposal.tokens.shape, dtype=torch.float64, device=proposal.tokens.device),
        levels=proposal.longest,
    )
    rows = torch.arange(len(proposal.tokens), device=proposal.tokens.device)
    keys = proposal.token_key(rows, torch.zeros_like(rows))
    endless = torch.full_like(rows, proposal.longest + 2)
    draws = Draws(chooser=chooser, rows=keys[:, 0], position=keys[:, 1], remaining=endless, eos=None)
    run = membership_walk(tree, proposal.target.double(), draws)
    step = torch.arange(tree.levels + 1, device=rows.device)
    return Verified(
        accepted=run.accepted,
        tokens=torch.where(step <= run.accepted[:, None], run.tokens, EMPTY),
        path=torch.where(step[:-1] < run.accepted[:, None], run.path - 1, EMPTY),
    )
