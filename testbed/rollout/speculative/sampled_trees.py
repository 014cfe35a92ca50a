"""Trees whose tokens are drawn from the drafter's laws, for the verifiers that need to know what they were drawn from."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.tree import EMPTY, DraftTree, RankPaths
from testbed.rollout.speculative.verify.laws import without
from testbed.rollout.speculative.verify.protocol import DRAWN, unused_by_tokens


def drawn_tree(
    log_laws: Float[Tensor, "b K V"],
    fan_out: tuple[int, ...],
    nodes: int,
    chooser: Chooser,
    rows: Int64[Tensor, " b"],
    position: Int64[Tensor, " b"],
    *,
    distinct: bool,
) -> tuple[DraftTree, Float[Tensor, "b M V"]]:
    """Draw the tokens of a tree of fixed shape, and return it with the law of every place's children (the root's first).

    Parameters
    ----------
    log_laws : Float[Tensor, "b K V"]     of the token at depth 1 .. K, whatever stands in between
    fan_out : tuple of int                children per node at each depth, of at most K depths
    nodes : int                           the first so many places of that shape, in order of depth
    chooser, rows, position               draws are keyed by the round, with keys that no token has
    distinct : bool                       siblings drawn without replacement; a law that knows no more tokens leaves the
                                          rest of its places empty

    Examples
    --------
    >>> from testbed import RandomChooser
    >>> q = torch.tensor([[[0.5, 0.5]]]).log()
    >>> zero = torch.tensor([0])
    >>> tree, law = drawn_tree(q, (2,), 2, RandomChooser(0), zero, zero, distinct=True)
    >>> sorted(tree.tokens[0].tolist()), law.shape
    ([0, 1], torch.Size([1, 3, 2]))
    """
    shape = _shape(fan_out, nodes)
    device, batch = log_laws.device, len(rows)
    rank, parent, depth = (x.to(device) for x in (shape.rank, shape.parent, shape.depth))
    places, levels = len(rank), shape.levels
    q = log_laws.double().exp()
    q = q / q.sum(-1, keepdim=True)
    left = q[:, depth - 1]  # what each place is drawn from
    tokens = torch.full((batch, places), EMPTY, dtype=torch.int64, device=device)
    for number in range(shape.width):
        here = torch.nonzero(rank == number)[:, 0]  # of a shape, not of a row: nothing is waited for
        law = left[:, here].flatten(0, 1)
        can = law.sum(-1) > 0
        certain = torch.nn.functional.one_hot(torch.zeros_like(can, dtype=torch.int64), law.shape[-1]).to(law)
        response, first, slot = (
            x.flatten() for x in torch.broadcast_tensors(rows[:, None], position[:, None], DRAWN + here)
        )
        key = torch.stack([response, unused_by_tokens(first, slot)], 1)
        token = chooser.choose(torch.where(can[:, None], law, certain), key)
        tokens[:, here] = torch.where(can, token, EMPTY).reshape(batch, -1)
        if distinct:
            for place in here.tolist():  # the next siblings are drawn from what this one leaves
                after = torch.nonzero((parent == parent[place]) & (rank > number))[:, 0]
                if len(after):
                    rest = without(left[:, place], tokens[:, place].clamp(min=0))
                    left[:, after] = torch.where((tokens[:, place] >= 0)[:, None], rest, 0.0)[:, None]
    for place in range(places):  # nothing stands below an empty place
        if int(parent[place]) >= 0:
            tokens[:, place] = torch.where(tokens[:, parent[place]] >= 0, tokens[:, place], EMPTY)
    step = q[:, depth - 1].gather(2, tokens.clamp(min=0)[..., None])[..., 0].log()
    weight = step
    for _ in range(levels - 1):
        weight = step + torch.where(parent >= 0, weight[:, parent.clamp(min=0)], 0.0)
    tree = DraftTree(
        tokens=tokens,
        parent=parent.expand(batch, -1),
        depth=depth.expand(batch, -1),
        log_weight=weight,
        levels=levels,
    )
    children = torch.cat([torch.zeros(1, dtype=torch.int64, device=device), depth]).clamp(max=log_laws.shape[1] - 1)
    return tree, log_laws[:, children]


@lru_cache(maxsize=64)
def _shape(fan_out: tuple[int, ...], nodes: int) -> RankPaths:
    """First places of the product shape: parents come first, so they form a tree."""
    return RankPaths.of(RankPaths.product(fan_out).ranks()[:nodes])
