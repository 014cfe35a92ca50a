"""Token rejection: the classical rule for a drawn chain, one coin per token up to the first rejection."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.rollout.speculative.verify.laws import acceptance, residual
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.walk import Walk


def token_rejection(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify a drawn chain token by token.

        accept x_i with probability min(1, p_i(x_i) / q_i(x_i));  at the first rejection draw from (p_i - q_i)+ normalized;
        all accepted: draw the bonus from p

    Parameters
    ----------
    proposal : Proposal   a chain per row, x_i drawn from q_i
    chooser : Chooser     a coin per token up to the first rejection, one token per row

    Returns
    -------
    Verified

    Raises
    ------
    InputError   a tree that is no chain, or no drafter law
    Assumes      q is the law the tokens were drawn from, and coins are independent of the draft
    Gives        the target's law; a token is accepted with probability sum min(p, q) = 1 - TV(p, q) (V1)
    Numerics     ratios of probabilities in float64; all rows and positions at once, but for the coins: one draw per position
    References   arXiv 2211.17192, arXiv 2302.01318

    Examples
    --------
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> p, q = torch.tensor([0.0, 1.0]).log().expand(1, 2, 2), torch.tensor([0.5, 0.5]).log().expand(1, 2, 2)
    >>> token_rejection(chain(torch.tensor([[0]]), target=p, drafter=q), RandomChooser(0)).emitted()
    [(1,)]
    """
    require_chain(proposal)
    p, q = proposal.tables()
    walk = accept_in_order(proposal, chooser, chances(p, q, proposal.tokens))
    at = walk.accepted
    rest = residual(p[walk.every, at], q[walk.every, at])[0]
    return walk.finish(chooser, torch.where(ended(proposal, at)[:, None], p[walk.every, at], rest))


def accept_in_order(proposal: Proposal, chooser: Chooser, accept: Float[Tensor, "B N"]) -> Walk:
    """Walk down each chain while its tokens are accepted, token i with probability accept[:, i]; one coin per token tried."""
    walk = Walk(proposal)
    for place in range(proposal.tokens.shape[1]):
        walk.offer(chooser, place, accept[:, place])
    return walk


def chances(p: Float[Tensor, "B M V"], q: Float[Tensor, "B M V"], tokens: Int64[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Probability of accepting each token of a chain, given that all before it are accepted."""
    drawn = (tokens.clamp(min=0).reshape(-1),)
    before = tokens.shape[1]
    flat = acceptance(p[:, :before].reshape(-1, p.shape[2]), q[:, :before].reshape(-1, q.shape[2]), *drawn)
    return torch.where(tokens >= 0, flat.reshape(tokens.shape), 0.0)


def ended(proposal: Proposal, accepted: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Whether the whole chain is accepted."""
    return accepted == (proposal.tokens >= 0).sum(1)


def require_chain(proposal: Proposal) -> None:
    """Refuse a tree, unless the proposal's maker vouches for it: an engine drafts chains for the rules that verify chains.

    Raises
    ------
    InputError   a node that does not continue the place before it
    """
    if proposal.checked:
        return
    real = proposal.tokens >= 0
    straight = proposal.parent == torch.arange(real.shape[1], device=real.device) - 1
    if bool((real & ~straight).any()):
        raise InputError(
            "this rule verifies chains: each token continues the one before it",
            found="a tree",
            hint="for drawn trees: `specinfer`, `sequoia`, `traversal`",
        )
