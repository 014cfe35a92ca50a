"""Verification rules that are wrong, kept to be recognized: each looks like an exact rule and emits another law.

A specimen is called like a verifier, `rule(proposal, chooser)`, on the drafts that `SPECIMENS` names for it; `argmax_draft`
is an exact rule on a draft whose law is misstated. What each costs, as total variation from the target, is decided by
enumeration in the tests; where a closed form is known it is stated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.policies.base import Policy
from testbed.rollout.speculative.verify.drawing import DrawnDraft
from testbed.rollout.speculative.verify.laws import acceptance, residual
from testbed.rollout.speculative.verify.protocol import Proposal, Verified
from testbed.rollout.speculative.verify.rounds import try_children
from testbed.rollout.speculative.verify.specinfer import specinfer
from testbed.rollout.speculative.verify.token_rejection import (
    accept_in_order,
    chances,
    ended,
    require_chain,
    token_rejection,
)
from testbed.rollout.speculative.verify.walk import Walk


def spec_rl(proposal: Proposal, chooser: Chooser, lenience: float = 0.0) -> Verified:
    """Reuse an earlier response up to the first rejected token, then go on from the target itself.

        accept x with probability min(1, e^b p(x) / q(x));  at the first rejection draw from p, not from the residual

    One token's law is min(p, q) + (1 - alpha) p for b = 0, alpha = sum min(p, q): total variation
    1/2 sum |min(p, q) - alpha p| (V12).

    Parameters
    ----------
    proposal : Proposal   a chain per row: the earlier response, with the law that it was sampled from
    chooser : Chooser
    lenience : float      b, in nats; what more is accepted is drawn from q
    """
    require_chain(proposal)
    p, q = proposal.tables()
    accept = chances(math.exp(lenience) * p, q, proposal.tokens)
    walk = accept_in_order(proposal, chooser, accept)
    return walk.finish(chooser, p[walk.every, walk.accepted])


def spec_rl_repaired(proposal: Proposal, chooser: Chooser) -> Verified:
    """Reuse an earlier response up to the first rejected token and draw that token from the residual: exact (V12).

    It needs the whole law q at the rejected position, and q must be the law that was sampled (after top-p).
    """
    return token_rejection(proposal, chooser)


def redraw_after_miss(proposal: Proposal, chooser: Chooser) -> Verified:
    """Compare a draw with the children and, if it is none of them, draw again.

    One token's law is p on S plus (1 - p(S)) p, with S the drafted set: total variation p(S) (1 - p(S)).
    """
    walk = Walk(proposal)
    live = walk.every
    while live.numel():
        node = walk.node[live]
        first = chooser.choose(proposal.target_law(live, node), proposal.coin_key(live, node + 1))
        child = proposal.child_holding(live, node, first)
        live, child = live[child >= 0], child[child >= 0]
        walk.node[live] = child
    return walk.finish(chooser, proposal.target_law(walk.every, walk.node))


def coin_reused(proposal: Proposal, chooser: Chooser) -> Verified:
    """Let one uniform number decide whether a child is accepted and, if not, which other token is drawn.

    u < p(S) picks a child by cumulative mass; otherwise the same u, which is now known to be large, is put through the
    cumulative law of the tokens outside of S: small tokens are never drawn. The chooser draws from the law that results.
    """
    walk = Walk(proposal)
    live = walk.every
    while live.numel():
        node = walk.node[live]
        p = proposal.target_law(live, node)
        drafted = _drafted(proposal, live, node)
        share = torch.where(drafted, p, 0.0).sum(1)
        rest = torch.where(drafted, 0.0, p)
        reused = _beyond(rest / rest.sum(1, keepdim=True).clamp(min=1e-300), share)
        token = chooser.choose(torch.where(drafted, p, reused), proposal.token_key(live, walk.accepted[live]))
        child = proposal.child_holding(live, node, token)
        walk.last[live[child < 0]] = token[child < 0]
        live, child = live[child >= 0], child[child >= 0]
        walk.node[live] = child
    return walk.done()


def token_coin_reused(proposal: Proposal, chooser: Chooser) -> Verified:
    """Let one uniform number accept a drawn token (u < a, a = min(1, p(x)/q(x))) and draw from the residual if it does not.

    Rejected, u lies in (a, 1): put through the residual's cumulative law it misses the first tokens. The chooser draws from
    the law of (accepted, or which token) that results.
    """
    require_chain(proposal)
    p, q = proposal.tables()
    accept = chances(p, q, proposal.tokens)
    walk = Walk(proposal)
    live = walk.every
    for i in range(proposal.tokens.shape[1]):
        live = live[proposal.tokens[live, i] >= 0]
        rest = residual(p[live, i], q[live, i])[0]
        outcome = torch.cat([accept[live, i, None], _beyond(rest, accept[live, i])], 1)
        found = chooser.choose(outcome, proposal.token_key(live, walk.accepted[live])) - 1
        walk.last[live[found >= 0]] = found[found >= 0]
        live = live[found < 0]
        walk.node[live] = i
    if live.numel():
        at = walk.accepted[live]
        walk.last[live] = chooser.choose(p[live, at], proposal.token_key(live, at))
    return walk.done()


def residual_not_subtracted(proposal: Proposal, chooser: Chooser) -> Verified:
    """Try children drawn from q against p itself, however many were rejected, and end with a draw from p.

    With one child per node, the law of `spec_rl`.
    """
    return try_children(proposal, chooser, acceptance, lambda p, q, token: (p, q))


def stale_drafter_law(proposal: Proposal, chooser: Chooser) -> Verified:
    """Verify siblings drawn without replacement as if they were independent: q keeps the tokens already tried."""
    return specinfer(proposal, chooser)


def block_with_token_rule(proposal: Proposal, chooser: Chooser) -> Verified:
    """Accept up to the last coin that succeeds, as blocks do, with the coins and the residual of single tokens."""
    require_chain(proposal)
    p, q = proposal.tables()
    accept = chances(p, q, proposal.tokens)
    walk = Walk(proposal)
    walk.climb(chooser, accept)
    tau = walk.node + 1
    rest = residual(p[walk.every, tau], q[walk.every, tau])[0]
    return walk.finish(chooser, torch.where(ended(proposal, tau)[:, None], p[walk.every, tau], rest))


def typical_acceptance(proposal: Proposal, chooser: Chooser, threshold: float = 0.3, scale: float = 0.09) -> Verified:
    """Accept every drafted token that the target does not find too unlikely: lossy by design.

        accept x iff p(x) > min(threshold, scale e^{-H(p)}),  H the entropy of p in nats

    With a draft that is always typical, the law is the drafter's.
    """
    require_chain(proposal)
    rows, places = proposal.tokens.shape
    every = torch.arange(rows, device=proposal.tokens.device)
    accept = torch.zeros(rows, places, dtype=torch.float64, device=every.device)
    for i in range(places):
        p = proposal.target_law(every, torch.full_like(every, i - 1))
        bar = (scale * torch.exp(torch.special.entr(p).sum(1).neg())).clamp(max=threshold)
        accept[:, i] = (p.gather(1, proposal.tokens[:, i : i + 1].clamp(min=0))[:, 0] > bar).double()
    walk = accept_in_order(proposal, chooser, accept)
    return walk.finish(chooser, proposal.target_law(walk.every, walk.node))


def always_accepted(proposal: Proposal, chooser: Chooser) -> Verified:
    """Compare with a coin that is always 0: the law is the drafter's."""
    require_chain(proposal)
    walk = accept_in_order(proposal, chooser, (proposal.tokens >= 0).double())
    return walk.finish(chooser, proposal.target_law(walk.every, walk.node))


def argmax_draft(drafter: Policy, prefix: Int64[Tensor, "B t"], length: int) -> DrawnDraft:
    """Draft each row's most probable tokens, and hand on the drafter's law as if they had been drawn from it.

    `token_rejection` on this draft emits x = argmax q with probability min(1, p(x) / q(x)), and else a draw from the residual.
    """
    tokens, path, laws = prefix[:, :0], prefix, []
    for _ in range(length):
        laws.append(drafter.next_log_probs(path).double())
        best = laws[-1].argmax(1, keepdim=True)
        tokens, path = torch.cat([tokens, best], 1), torch.cat([path, best], 1)
    laws.append(torch.full((len(prefix), drafter.vocab_size), -torch.inf, dtype=torch.float64, device=prefix.device))
    parent = torch.arange(length, device=prefix.device) - 1
    return DrawnDraft(tokens=tokens, parent=parent, drafter=torch.stack(laws, 1))


def _beyond(law: Float[Tensor, "b V"], start: Float[Tensor, " b"]) -> Tensor:
    """Length of each token's interval of the cumulative law that lies beyond `start`, [b, V]."""
    upper = law.cumsum(1)
    lower = torch.maximum(torch.cat([torch.zeros_like(upper[:, :1]), upper[:, :-1]], 1), start[:, None])
    return (upper - lower).clamp(min=0.0)


def _drafted(proposal: Proposal, rows: Int64[Tensor, " b"], node: Int64[Tensor, " b"]) -> Tensor:
    """Which tokens the children of each node hold, [b, V]."""
    child = (proposal.parent[rows] == node[:, None]) & (proposal.tokens[rows] >= 0)
    held = torch.zeros(len(rows), proposal.target.shape[2], dtype=torch.int64, device=rows.device)
    return held.scatter_add_(1, proposal.tokens[rows].clamp(min=0), child.long()) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """What is wrong with a rule, on which drafts it shows, and where it was seen.

    drafts    what the rule is given: any tree | chain | independent | distinct | argmax
    """

    drafts: Literal["any", "chain", "independent", "distinct", "argmax"]
    wrong: str
    seen: str


SPECIMENS: dict[str, Specimen] = {
    "spec_rl": Specimen(
        drafts="chain", wrong="goes on from the target after a rejection instead of from the residual",
        seen="SPEC-RL (arXiv 2509.23232) and its code",
    ),
    "redraw_after_miss": Specimen(
        drafts="any", wrong="draws a position twice and keeps the first draw only if it was drafted",
        seen="a natural misreading of sample-match verification",
    ),
    "coin_reused": Specimen(
        drafts="any", wrong="the coin that rejected the children also draws the token after them",
        seen="sglang pull request 7207",
    ),
    "token_coin_reused": Specimen(
        drafts="chain", wrong="the coin that rejected a token also draws the one in its place",
        seen="the same, in the token rule",
    ),
    "residual_not_subtracted": Specimen(
        drafts="independent", wrong="what rejected children have covered is not taken out of the target's law",
        seen="the rejection branch of many short implementations",
    ),
    "stale_drafter_law": Specimen(
        drafts="distinct", wrong="the drafter's law is not updated although siblings were drawn without replacement",
        seen="multi-round rejection applied to a top-k sampler",
    ),
    "block_with_token_rule": Specimen(
        drafts="chain", wrong="the last success of token coins is taken for the block's end",
        seen="vllm-ascend issue 7807",
    ),
    "typical_acceptance": Specimen(
        drafts="chain", wrong="accepts what is typical for the target, whatever the drafter's law",
        seen="Medusa (arXiv 2401.10774)",
    ),
    "always_accepted": Specimen(
        drafts="chain", wrong="the acceptance coin is hard-wired to 0", seen="vllm-ascend issue 13730",
    ),
    "argmax_draft": Specimen(
        drafts="argmax", wrong="the draft is the argmax but its probability is read from the softmax",
        seen="transformers issue 32867",
    ),
}  # fmt: skip


def specimen(name: str) -> Callable[[Proposal, Chooser], Verified]:
    """Return a wrong rule by name; of `argmax_draft`, whose draft is wrong, the rule that it is given to.

    Examples
    --------
    >>> specimen("coin_reused").__name__
    'coin_reused'
    """
    return token_rejection if name == "argmax_draft" else globals()[name]
