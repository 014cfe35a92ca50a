"""Block verification: a drawn chain is accepted up to a position that is decided for all positions together."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.verify.laws import residual
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.token_rejection import ended, require_chain
from testbed.rollout.speculative.verify.walk import Walk


def block(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a drawn chain as a block.

        pi_0 = 1,  pi_i = min(1, pi_{i-1} p_i(x_i) / q_i(x_i))
        h_i = s_i / (s_i + 1 - pi_i)  with  s_i = sum_v (pi_i p_{i+1}(v) - q_{i+1}(v))+  (0/0 = 0),  h_n = pi_n at the end
        tau = the last i whose coin of probability h_i succeeds (0 if none does);  then draw from (pi_tau p - q)+
        normalized, or the bonus from p if tau = n

    Parameters
    ----------
    proposal : Proposal   a chain per row, x_i drawn from q_i
    chooser : Chooser     a coin per position from the last one back to tau, one token per row

    Returns
    -------
    Verified

    Raises
    ------
    InputError   a tree that is no chain, or no drafter law
    Assumes      q is the law the tokens were drawn from, and coins are independent of the draft
    Gives        the target's law; x_1..x_i is accepted with probability pi_i, so never less often than by `token_rejection` (V4)
    Numerics     float64; all rows at once, one draw per position
    References   arXiv 2403.10444

    Examples
    --------
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> p = torch.tensor([0.5, 0.5]).log().expand(1, 3, 2)
    >>> block(chain(torch.tensor([[0, 1]]), target=p, drafter=p), RandomChooser(0)).accepted
    tensor([2])
    """
    require_chain(proposal)
    p, q = proposal.tables()
    joint = joint_acceptance(proposal, p, q)
    succeed = successes(proposal, joint, p, q)
    walk = Walk(proposal)
    walk.climb(chooser, succeed[:, 1:])
    tau = walk.node + 1
    rest = residual(p[walk.every, tau], q[walk.every, tau], joint[walk.every, tau])[0]
    return walk.finish(chooser, torch.where(ended(proposal, tau)[:, None], p[walk.every, tau], rest))


def joint_acceptance(proposal: Proposal, p: Float[Tensor, "B M V"], q: Float[Tensor, "B M V"]) -> Float[Tensor, "B M"]:
    """pi_0 .. pi_N: probability that at least the first i tokens are accepted, given the first i tokens."""
    tokens = proposal.tokens
    at = tokens.clamp(min=0)[..., None]
    above, below = p[:, :-1].gather(2, at)[..., 0], q[:, :-1].gather(2, at)[..., 0]
    joint = [torch.ones_like(p[:, 0, 0])]
    for i in range(tokens.shape[1]):
        drawn = (tokens[:, i] >= 0) & (below[:, i] > 0)
        ratio = above[:, i] / torch.where(drawn, below[:, i], 1.0)
        joint.append(torch.where(drawn, (joint[-1] * ratio).clamp(max=1.0), 0.0))
    return torch.stack(joint, 1)


def successes(
    proposal: Proposal, joint: Float[Tensor, "B M"], p: Float[Tensor, "B M V"], q: Float[Tensor, "B M V"]
) -> Float[Tensor, "B M"]:
    """h_0 .. h_N: probability that position i's coin succeeds."""
    mass = (joint[..., None] * p - q).clamp(min=0.0).sum(-1)
    total = mass + 1 - joint
    inner = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 0.0)
    length = (proposal.tokens >= 0).sum(1, keepdim=True)
    return torch.where(torch.arange(joint.shape[1], device=joint.device) == length, joint, inner)
