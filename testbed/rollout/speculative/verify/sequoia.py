"""Multi-round rejection for children drawn without replacement."""

from __future__ import annotations

from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import acceptance, residual, without
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.rounds import try_children


def sequoia(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a tree whose siblings were drawn from their parent's drafter law without replacement.

        accept x with probability min(1, p(x) / q(x));  else p <- (p - q)+ normalized, q <- q conditioned on not being x

    A law that knows k tokens gives at most k children: when they are all rejected, the residual is drawn from.

    Parameters
    ----------
    proposal : Proposal   siblings drawn one after the other from what q(. | parent) leaves
    chooser : Chooser     a coin per child that is tried, one token per row

    Returns
    -------
    Verified

    Raises
    ------
    InputError   no drafter law
    Assumes      q is the law the children were drawn from, in the order of their places
    Gives        the target's law (V4); expected length: `expected.distinct_children`
    References   Sequoia, arXiv 2402.12374

    Examples
    --------
    >>> import torch
    >>> from testbed.core.choices import RandomChooser
    >>> p = torch.tensor([0.0, 1.0]).log().expand(1, 3, 2)
    >>> proposal = Proposal(tokens=torch.tensor([[0, 1]]), parent=torch.tensor([-1, -1]), target=p,
    ...                     drafter=torch.tensor([0.9, 0.1]).log().expand(1, 3, 2))
    >>> sequoia(proposal, RandomChooser(0)).path
    tensor([[ 1, -1]])
    """
    return try_children(proposal, chooser, acceptance, left_over)


def left_over(p: Tensor, q: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Target's law less the drafter's, and the drafter's law without the token."""
    return residual(p, q)[0], without(q, token)
