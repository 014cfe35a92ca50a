"""Drawn drafts: trees whose siblings are draws from a drafter, independent of each other or without replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.policies.base import Policy
from testbed.rollout.speculative.verify.laws import certain_unless, without
from testbed.rollout.speculative.verify.protocol import DRAWN, EMPTY, ROOT, Proposal, unused_by_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDraft:
    """Drafts of B rows that share one shape.

    tokens    [B, N]        -1 where a drafter that draws without replacement had no token left, and below such places
    parent    [N]           levels one after the other, siblings side by side
    drafter   [B, N+1, V]   log-law that the children of the root and of each place were drawn from; -inf after leaves
    """

    tokens: Int64[Tensor, "B N"]
    parent: Int64[Tensor, " N"]
    drafter: Float[Tensor, "B M V"]


def shape_of(branching: Sequence[int]) -> tuple[list[int], list[int]]:
    """Parent and depth of each place of a tree in which every node of depth d has `branching[d]` children.

    Raises
    ------
    InputError   no depth, or a number of children below 1

    Examples
    --------
    >>> shape_of((2, 1))
    ([-1, -1, 0, 1], [1, 1, 2, 2])
    """
    if not branching or min(branching) < 1:
        raise InputError("`branching` must name a number of children >= 1 for each depth", found=tuple(branching))
    parent: list[int] = []
    depth: list[int] = []
    level = [ROOT]
    for number, children in enumerate(branching, 1):
        start = len(parent)
        parent += [node for node in level for _ in range(children)]
        depth += [number] * (len(parent) - start)
        level = list(range(start, len(parent)))
    return parent, depth


def draw_tokens(
    parent: Sequence[int],
    law_below: Callable[[int, list[Int64[Tensor, " B"]]], Float[Tensor, "B V"]],
    chooser: Chooser,
    response: Int64[Tensor, " B"],
    position: Int64[Tensor, " B"],
    *,
    distinct: bool,
) -> Int64[Tensor, "B N"]:
    """Draw the tokens of a tree place by place: siblings independently or without replacement, nothing below an empty place.

    Parameters
    ----------
    parent : sequence of int                 the shape, one for all rows; parents come before their children
    law_below : (node, tokens so far) -> law   probabilities that the children of a node (-1 = the root) are drawn with; asked
                                             once, before the first of them; where the node is empty it may be any
    chooser : Chooser                        one draw per place; a row with no token to draw has a certain one, which is dropped
    response, position : Int64[Tensor, " B"]   of the round: the draws' keys are made from them, and no token and no coin has them
    distinct : bool                          siblings without replacement; a law that knows no more tokens leaves places empty

    Returns
    -------
    Int64[Tensor, "B N"]   -1 on empty places

    Examples
    --------
    >>> from testbed import RandomChooser
    >>> sure, zero = torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    >>> draw_tokens([-1, -1, 0, 1], lambda node, drawn: sure, RandomChooser(0), zero, zero, distinct=True)
    tensor([[ 1, -1,  1, -1]])
    """
    tokens: list[Tensor] = []
    left: dict[int, Tensor] = {}  # what the next child of a node is drawn from
    for place, up in enumerate(parent):
        if up not in left:
            law = law_below(up, tokens)
            left[up] = law if up == ROOT else torch.where((tokens[up] >= 0)[:, None], law, 0.0)
        can = left[up].sum(-1) > 0
        key = torch.stack([response, unused_by_tokens(position, DRAWN + place)], 1)
        token = chooser.choose(certain_unless(can, left[up]), key)
        tokens.append(torch.where(can, token, EMPTY))
        if distinct:
            left[up] = without(left[up], token)
    return torch.stack(tokens, 1)


def draw_draft(
    drafter: Policy,
    prefix: Int64[Tensor, "B t"],
    branching: Sequence[int],
    chooser: Chooser,
    *,
    distinct: bool = False,
    response: Int64[Tensor, " B"] | None = None,
) -> DrawnDraft:
    """Draw a tree behind each prefix, from the laws that a policy has after the path to each place.

    Parameters
    ----------
    drafter : Policy                 its law after a place's path draws the place's children
    prefix : Int64[Tensor, "B t"]    the responses so far
    branching : sequence of int      children per node at depth 0, 1, ...; ones give chains
    chooser : Chooser                one draw per place, with keys that no token and no coin has
    distinct : bool                  siblings without replacement, as far as the law knows tokens
    response : Int64[Tensor, " B"]   first half of the keys (None: the row's number)

    Returns
    -------
    DrawnDraft

    Examples
    --------
    >>> from testbed import RandomChooser, TabularPolicy
    >>> q = TabularPolicy(torch.zeros(4, 3))
    >>> draw_draft(q, torch.zeros(1, 0, dtype=torch.int64), (3,), RandomChooser(0), distinct=True).tokens.sort().values
    tensor([[0, 1, 2]])
    """
    parent, _ = shape_of(branching)
    rows = prefix.shape[0]
    response = torch.arange(rows, device=prefix.device) if response is None else response
    laws = torch.full(
        (rows, len(parent) + 1, drafter.vocab_size), -torch.inf, dtype=torch.float64, device=prefix.device
    )

    def law_below(node: int, drawn: list[Tensor]) -> Tensor:
        path: list[Tensor] = []
        at = node
        while at != ROOT:
            path.insert(0, drawn[at].clamp(min=0)[:, None])
            at = parent[at]
        laws[:, node + 1] = drafter.next_log_probs(torch.cat([prefix, *path], 1)).double()
        return laws[:, node + 1].exp()

    position = torch.full_like(response, prefix.shape[1])
    tokens = draw_tokens(parent, law_below, chooser, response, position, distinct=distinct)
    return DrawnDraft(tokens=tokens, parent=torch.tensor(parent, device=prefix.device), drafter=laws)


def proposal_of(
    target: Policy,
    prefix: Int64[Tensor, "B t"],
    tokens: Int64[Tensor, "B N"],
    parent: Int64[Tensor, " N"],
    drafter: Float[Tensor, "B M V"] | None = None,
) -> Proposal:
    """Proposal of drafts that share one shape, with the target's law after every path."""
    paths = [prefix]
    laws = [target.next_log_probs(prefix)]
    for place, up in enumerate(parent.tolist()):
        paths.append(torch.cat([paths[up + 1], tokens[:, place : place + 1].clamp(min=0)], 1))
        laws.append(target.next_log_probs(paths[-1]))
    position = torch.full_like(tokens[:, 0] if tokens.shape[1] else prefix.sum(1), prefix.shape[1])
    return Proposal(tokens=tokens, parent=parent, target=torch.stack(laws, 1), drafter=drafter, position=position)
