"""Multi-round rejection for children drawn independently of each other from one law."""

from __future__ import annotations

from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import acceptance, residual
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.rounds import try_children


def specinfer(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a tree whose siblings are independent draws from their parent's drafter law.

        accept x with probability min(1, p(x) / q(x));  else p <- (p - q)+ normalized

    Parameters
    ----------
    proposal : Proposal   siblings drawn independently from q(. | parent), repetitions included
    chooser : Chooser     a coin per child that is tried, one token per row

    Returns
    -------
    Verified

    Raises
    ------
    InputError   no drafter law
    Assumes      q is the law the children were drawn from, and coins are independent of the draft
    Gives        the target's law (V4); expected length: `expected.independent_children`. One child per node: the token rule
    References   SpecInfer, arXiv 2305.09781

    Examples
    --------
    >>> import torch
    >>> from testbed.core.choices import RandomChooser
    >>> p = torch.tensor([0.0, 1.0]).log().expand(1, 3, 2)
    >>> proposal = Proposal(tokens=torch.tensor([[0, 1]]), parent=torch.tensor([-1, -1]), target=p,
    ...                     drafter=torch.tensor([0.5, 0.5]).log().expand(1, 3, 2))
    >>> specinfer(proposal, RandomChooser(0)).path
    tensor([[ 1, -1]])
    """
    return try_children(proposal, chooser, acceptance, left_over)


def left_over(p: Tensor, q: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Target's law less the drafter's; the next child was drawn from the same q."""
    return residual(p, q)[0], q
