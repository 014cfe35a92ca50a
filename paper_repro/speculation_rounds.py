"""What is noted of speculative rounds: per response, how many drafts were accepted and how likely the target found them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.rollout.speculative.rounds import Round

COUNTED = ("rounds", "accepted", "expected", "root", "hits", "coverage", "variance")


class RoundNotes:
    """Sums over the rounds of each response, to be given to an engine as `watch`.

    rounds, accepted     rounds, and drafts accepted in them
    expected             the target's mean of accepted drafts given the tree: sum of its path probabilities over nodes that
                         could be accepted, which ends and caps limit
    root                 the target's probability that the next token is a candidate
    hits, coverage       emitted tokens that were candidates, and the target's probability of it, where there were candidates
    variance             sum of coverage (1 - coverage): that of hits - coverage, a martingale
    """

    def __init__(self, responses: int, horizon: int, eos: int | None) -> None:
        self.horizon, self.eos = horizon, eos
        self.sums = {name: torch.zeros(responses, dtype=torch.float64) for name in COUNTED}

    def __call__(self, finished: Round) -> None:
        """Add a round."""
        hit, coverage, offered = finished.hits()
        remaining = self.horizon - finished.frontier.position
        found = {
            "rounds": torch.ones(len(remaining)),
            "accepted": finished.run.accepted,
            "expected": expected_accepted(finished, remaining, self.eos),
            "root": coverage[:, 0],
            "hits": (hit & offered).sum(1),
            "coverage": torch.where(offered, coverage, 0.0).sum(1),
            "variance": torch.where(offered, coverage * (1 - coverage), 0.0).sum(1),
        }
        for name, value in found.items():
            self.sums[name][finished.frontier.rows.cpu()] += value.double().cpu()


def expected_accepted(finished: Round, remaining: Int64[Tensor, " b"], eos: int | None) -> Float[Tensor, " b"]:
    """Mean of accepted drafts given the tree: sum of the target's path probabilities over the nodes that can be accepted.

    A node at depth d is accepted if the draws follow its path and the response goes on after it: it holds no end token, and d
    is less than the tokens that remain.
    """
    tree = finished.tree
    if not tree.nodes:
        return torch.zeros(len(remaining), dtype=torch.float64)
    rows = torch.arange(len(remaining), device=tree.tokens.device)[:, None]
    step = finished.log_probs[rows, tree.parent + 1, tree.tokens.clamp(min=0)].double()
    possible = (tree.tokens >= 0) & (tree.depth < remaining[:, None])
    if eos is not None:
        possible &= tree.tokens != eos
    step = torch.where(possible, step, -torch.inf)
    path = step
    for _ in range(tree.levels - 1):
        path = step + torch.where(tree.parent >= 0, path.gather(1, tree.parent.clamp(min=0)), 0.0)
    return path.exp().sum(1)


class StreamNotes:
    """The stream that each token was drawn from, as heads read it; to be given to an engine as `watch`."""

    def __init__(self, responses: int, horizon: int, width: int) -> None:
        self.states = torch.zeros(responses, horizon, width)

    def __call__(self, finished: Round) -> None:
        """Note the streams behind a round's root and behind what it emitted."""
        frontier, place = finished.frontier, finished.run.places()
        self.states[frontier.rows.cpu(), frontier.position.cpu() - 1] = frontier.state.float().cpu()
        behind = finished.states.gather(1, place[:, :, None].expand(-1, -1, finished.states.shape[-1]))
        kept = finished.emitted
        at = frontier.position[:, None] + torch.arange(place.shape[1], device=place.device)
        rows = frontier.rows[:, None].expand_as(at)
        self.states[rows[kept].cpu(), at[kept].cpu()] = behind[kept].float().cpu()


def ranks(log_laws: Float[Tensor, "*B V"], token: Int64[Tensor, "*B"]) -> Int64[Tensor, "*B"]:
    """Rank of a token under a law, 0 the most probable; equal probabilities are ranked by id.

    Examples
    --------
    >>> ranks(torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]]).log(), torch.tensor([2, 2])).tolist()
    [1, 1]
    """
    own = log_laws.gather(-1, token[..., None])
    before = torch.arange(log_laws.shape[-1], device=log_laws.device) < token[..., None]
    return ((log_laws > own) | ((log_laws == own) & before)).sum(-1)
