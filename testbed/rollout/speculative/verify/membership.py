"""Membership: draw from the target and go on for as long as the draw was drafted."""

from __future__ import annotations

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.walk import Walk


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
    >>> import torch
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> sure = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log()
    >>> membership(chain(torch.tensor([[1]]), target=sure), RandomChooser(0)).tokens
    tensor([[1, 0]])
    """
    walk = Walk(proposal)
    live = walk.every
    while live.numel():
        node = walk.node[live]
        key = proposal.token_key(live, walk.accepted[live])
        token = chooser.choose(proposal.target_law(live, node), key)
        child = proposal.child_holding(live, node, token)
        drafted = child >= 0
        walk.emit(live[~drafted], token[~drafted])
        walk.move(live[drafted], to=child[drafted])
        live = live[drafted]
    return walk.done()
