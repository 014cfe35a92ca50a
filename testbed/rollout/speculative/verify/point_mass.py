"""Point-mass rejection: children that were not drawn are tried with the probability that the target gives them."""

from __future__ import annotations

from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import without
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.rounds import try_children


def point_mass(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a draft as if each child were certain to be drafted.

        accept x with probability p(x);  else p <- p conditioned on not being x

    Parameters
    ----------
    proposal : Proposal   any tree; the drafter's law is not used, so it serves drawn drafts whose law was not kept
    chooser : Chooser     a coin per child that is tried, one token per row

    Returns
    -------
    Verified

    Assumes      the tree was chosen without seeing the coins
    Gives        the target's law and the emissions of `membership`, in law (V4)
    References   the rejection rule with q = 1, as EAGLE-2 (arXiv 2406.16858) uses it

    Examples
    --------
    >>> import torch
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> sure = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log()
    >>> point_mass(chain(torch.tensor([[0]]), target=sure), RandomChooser(0)).emitted()
    [(1,)]
    """
    return try_children(proposal, chooser, chance, left_over, drawn=False)


def chance(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    """Target's probability of the token."""
    return p.gather(1, token[:, None])[:, 0]


def left_over(p: Tensor, q: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Target's law without the token."""
    return without(p, token), q
