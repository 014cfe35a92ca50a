"""Trees whose tokens are drawn from the drafter's laws, for the verifiers that need to know what they were drawn from."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.rollout.speculative.tree import DraftTree, RankPaths
from testbed.rollout.speculative.verify.drawing import draw_tokens


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
    q = log_laws.double().exp()
    q = q / q.sum(-1, keepdim=True)

    def law_below(node: int, drawn: list[Tensor]) -> Tensor:
        return q[:, shape.depth[node] if node >= 0 else 0]

    tokens = draw_tokens(shape.parent, law_below, chooser, rows, position, distinct=distinct)
    depth = shape.on(log_laws.device)[2]
    step = q[:, depth - 1].gather(2, tokens.clamp(min=0)[..., None])[..., 0].log()
    below = torch.nn.functional.pad(depth, (1, 0)).clamp(max=log_laws.shape[1] - 1)  # the root's law is the first
    return shape.holding(tokens, step), log_laws[:, below]


@lru_cache(maxsize=64)
def _shape(fan_out: tuple[int, ...], nodes: int) -> RankPaths:
    """First places of the product shape: parents come first, so they form a tree."""
    return RankPaths.of(RankPaths.product(fan_out).ranks()[:nodes])
