"""Draft trees as tensors: the continuations that one target pass checks, one tree per row, parents before children.

A tree is chosen greedily: the N largest path weights. Weights never grow along a path, so the N largest, ties broken toward
the root, are closed under taking parents and have the largest sum of all sets of N nodes, trees or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape

EMPTY = -1  # the token of a place that holds no node
ROOT = -1  # the parent of a node of depth 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """Candidate continuations of B rows, N places each.

    Parameters
    ----------
    tokens : Int64[Tensor, "B N"]         -1 on a place that holds no node; such places are the last of their row
    parent : Int64[Tensor, "B N"]         place of the parent, before the node's own; -1 = the root, the row's last token
    depth : Int64[Tensor, "B N"]          >= 1, the parent's plus one
    log_weight : Float[Tensor, "B N"]     <= 0, log of the estimated probability that the response runs through the node
    levels : int                          no node is deeper

    Raises
    ------
    InputError   tensors of different shapes

    Examples
    --------
    >>> tree = DraftTree.none(2, torch.device("cpu"))
    >>> tree.nodes, tree.levels
    (0, 0)
    """

    tokens: Int64[Tensor, "B N"]
    parent: Int64[Tensor, "B N"]
    depth: Int64[Tensor, "B N"]
    log_weight: Float[Tensor, "B N"]
    levels: int

    def __post_init__(self) -> None:
        for name in ("parent", "depth", "log_weight"):
            require_shape(name, getattr(self, name), tuple(self.tokens.shape))

    @staticmethod
    def none(rows: int, device: torch.device) -> DraftTree:
        """No candidates: the pass over such a tree is an autoregressive step."""
        empty = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        return DraftTree(tokens=empty, parent=empty, depth=empty, log_weight=empty.double(), levels=0)

    @property
    def nodes(self) -> int:
        """Places per row."""
        return self.tokens.shape[1]

    def ancestors(self) -> Bool[Tensor, "B M M"]:
        """Whether j lies on the path from the root to i, ends included; 0 stands for the root, j + 1 for place j (M = N + 1)."""
        batch, count = self.tokens.shape[0], self.tokens.shape[1] + 1
        device = self.tokens.device
        if not self.nodes:
            return torch.ones(batch, 1, 1, dtype=torch.bool, device=device)
        above = torch.cat([torch.zeros(batch, 1, dtype=torch.int64, device=device), self.parent + 1], 1)
        at = torch.arange(count, device=device).expand(batch, -1)
        out = torch.zeros(batch, count, count, dtype=torch.bool, device=device)
        for _ in range(self.levels + 1):
            out.scatter_(2, at[:, :, None], True)
            at = above.gather(1, at)
        return out

    def problem(self) -> str:
        """Say what is wrong with the tree, "" if nothing is."""
        if not self.nodes:
            return ""
        place = torch.arange(self.nodes, device=self.tokens.device)
        real, has, up = self.tokens >= 0, self.parent >= 0, self.parent.clamp(min=0)
        over = torch.where(has, self.depth.gather(1, up), 0)
        bound = torch.where(has, self.log_weight.gather(1, up), 0.0)
        behind = (~real).long().cummax(1).values > 0
        checks = {
            "a parent does not come before its child": self.parent >= place,
            "a node's parent is an empty place": real & has & ~real.gather(1, up),
            "a depth is not the parent's plus one": real & (self.depth != over + 1),
            "a node is deeper than `levels`": real & (self.depth > self.levels),
            "a weight exceeds its parent's": real & (self.log_weight > bound),
            "a node stands behind an empty place": real & behind,
        }
        twin = (self.tokens[:, :, None] == self.tokens[:, None]) & (self.parent[:, :, None] == self.parent[:, None])
        checks["two siblings hold one token"] = (twin & real[:, :, None] & (place[:, None] < place)).any(2)
        return next((says for says, wrong in checks.items() if bool(wrong.any())), "")


@dataclass(frozen=True, slots=True)
class RankPaths:
    """Paths that could be drafted, as ranks: path p continues `parent[p]` with candidate `rank[p]` of its depth.

    A parent stands before its children, so that the first paths of any number form a tree; those of `product` stand in
    order of depth, so that an order kept among ties is the order toward the root. Plain numbers: a shape is no device's.

    Examples
    --------
    >>> RankPaths.product((2, 1)).ranks()
    [(0,), (1,), (0, 0), (1, 0)]
    """

    rank: tuple[int, ...]
    parent: tuple[int, ...]
    depth: tuple[int, ...]

    @staticmethod
    def product(fan_out: tuple[int, ...]) -> RankPaths:
        """Every path with ranks below the fan-out of each depth.

        Raises
        ------
        InputError   a fan-out below 1, or none
        """
        if not fan_out or min(fan_out) < 1:
            raise InputError("`fan_out` must name a number >= 1 for each depth", found=fan_out)
        paths: list[tuple[int, ...]] = [()]
        out: list[tuple[int, ...]] = []
        for width in fan_out:
            paths = [(*path, rank) for path in paths for rank in range(width)]
            out += paths
        return RankPaths.of(out)

    @staticmethod
    def of(ranks: list[tuple[int, ...]]) -> RankPaths:
        """Return these paths, given as the ranks from the root on, in this order.

        Raises
        ------
        InputError   no path, an empty one, a negative rank, one twice, or one without its parent before it
        """
        index = {path: place for place, path in enumerate(ranks)}
        if not ranks or not all(ranks) or len(index) < len(ranks) or min(map(min, ranks)) < 0:
            raise InputError("paths must be distinct tuples of ranks >= 0, at least one", found=ranks[:4])
        for place, path in enumerate(ranks):
            if len(path) > 1 and index.get(path[:-1], place) >= place:
                raise InputError("every path needs its parent before it", found=f"{path} without {path[:-1]}")
        return RankPaths(
            tuple(path[-1] for path in ranks),
            tuple(index.get(path[:-1], ROOT) for path in ranks),
            tuple(len(path) for path in ranks),
        )

    @property
    def levels(self) -> int:
        """Depth of the longest path."""
        return max(self.depth)

    @property
    def width(self) -> int:
        """Candidates needed at each depth."""
        return max(self.rank) + 1

    def ranks(self) -> list[tuple[int, ...]]:
        """Write the paths out."""
        out: list[tuple[int, ...]] = []
        for rank, parent in zip(self.rank, self.parent, strict=True):
            out.append((*(out[parent] if parent >= 0 else ()), rank))
        return out

    def drafted(self, log_laws: Float[Tensor, "B K V"]) -> DraftTree:
        """Tree of all these paths in every row: at depth k, the rank-th most probable token of law k.

            log w(v) = sum over the path of log q_k(token), the product law of the depths

        Equal probabilities are ranked by id.

        Raises
        ------
        InputError   more candidates than there are tokens, or paths deeper than there are laws
        """
        if self.levels > log_laws.shape[1]:
            raise InputError(f"paths of {self.levels} levels need as many laws", found=log_laws.shape[1])
        best, token = _leading(log_laws, self.width)
        rank, _, depth = self.on(best.device)
        return self.holding(token[:, depth - 1, rank], best[:, depth - 1, rank])

    def holding(self, tokens: Int64[Tensor, "B P"], log_law: Float[Tensor, "B P"]) -> DraftTree:
        """Tree with these tokens on the paths, given the log-probability of each after its parent."""
        _, parent, depth = self.on(tokens.device)
        weight = log_law
        for _ in range(self.levels - 1):  # from the root on, so that no weight exceeds its parent's by rounding
            weight = log_law + torch.where(parent >= 0, weight[:, parent.clamp(min=0)], 0.0)
        rows = tokens.shape[0]
        return DraftTree(
            tokens=tokens,
            parent=parent.expand(rows, -1),
            depth=depth.expand(rows, -1),
            log_weight=weight,
            levels=self.levels,
        )

    def on(self, device: torch.device) -> tuple[Int64[Tensor, " P"], Int64[Tensor, " P"], Int64[Tensor, " P"]]:
        """Ranks, parents and depths as tensors, brought to a device once."""
        return _on_device(self, device)


@lru_cache(maxsize=64)
def _on_device(paths: RankPaths, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(False):  # whoever asks first, they serve all
        rank, parent, depth = (torch.tensor(x, device=device) for x in (paths.rank, paths.parent, paths.depth))
    return rank, parent, depth


def largest(tree: DraftTree, nodes: int) -> DraftTree:
    """Subtree of the `nodes` largest path weights of each row, ties to the earlier place, which is never the child's.

    Parameters
    ----------
    tree : DraftTree     with weights that do not grow along a path
    nodes : int          >= 0; as many or more leave the tree as it is

    Gives      a tree again; no set of as many nodes has a larger sum of weights (V6)

    Examples
    --------
    >>> q = torch.tensor([[[0.9, 0.1], [0.8, 0.2]]], dtype=torch.float64).log()
    >>> small = largest(RankPaths.product((2, 2)).drafted(q), 3)
    >>> small.tokens.tolist(), small.parent.tolist(), small.log_weight.exp()
    ([[0, 0, 1]], [[-1, 0, 0]], tensor([[0.9000, 0.7200, 0.1800]], dtype=torch.float64))
    """
    if nodes >= tree.nodes:
        return tree
    return _subtree(tree, order_of_weights(tree)[:, :nodes].sort(1).values)


def largest_of_all(tree: DraftTree, total: int) -> DraftTree:
    """Subtrees of the `total` largest path weights of all rows together, ties to the earlier place.

    Rows get different numbers of nodes: their trees end in empty places.

    Parameters
    ----------
    tree : DraftTree     with weights that do not grow along a path
    total : int          >= 0, nodes over all rows

    Gives      trees again; no choice of as many nodes has a larger sum of weights (V6)

    Examples
    --------
    >>> q = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]], dtype=torch.float64).log()
    >>> largest_of_all(RankPaths.product((2,)).drafted(q), 3).tokens.tolist()
    [[0, -1], [0, 1]]
    """
    weight = torch.where(tree.tokens >= 0, tree.log_weight, -torch.inf)
    order = torch.sort(weight.T.flatten(), descending=True, stable=True).indices  # ties: place first, then row
    kept = torch.zeros_like(order, dtype=torch.bool).scatter(0, order[:total], True)
    kept = kept.reshape(tree.nodes, -1).T & (tree.tokens >= 0)
    width = min(total, tree.nodes)
    chosen = torch.sort((~kept).long(), dim=1, stable=True).indices[:, :width]
    small = _subtree(tree, chosen)
    return replace(small, tokens=torch.where(kept.gather(1, chosen), small.tokens, EMPTY))


def _subtree(tree: DraftTree, chosen: Int64[Tensor, "B n"]) -> DraftTree:
    """Tree of the chosen places of each row, in the order given; a parent that was not chosen counts as the root."""
    place = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    now = torch.full_like(tree.tokens, ROOT).scatter(1, chosen, place)  # new place of each kept node
    parent = tree.parent.gather(1, chosen)
    return DraftTree(
        tokens=tree.tokens.gather(1, chosen),
        parent=torch.where(parent >= 0, now.gather(1, parent.clamp(min=0)), ROOT),
        depth=tree.depth.gather(1, chosen),
        log_weight=tree.log_weight.gather(1, chosen),
        levels=min(tree.levels, chosen.shape[1]),
    )


def order_of_weights(tree: DraftTree) -> Int64[Tensor, "B N"]:
    """Places from the largest path weight down; among equals the earlier place first, so a parent before its child."""
    weight = torch.where(tree.tokens >= 0, tree.log_weight, -torch.inf)
    return torch.sort(weight, dim=1, descending=True, stable=True).indices


def _leading(log_laws: Float[Tensor, "B K V"], width: int) -> tuple[Float[Tensor, "B K W"], Int64[Tensor, "B K W"]]:
    """Log-probabilities and ids of the most probable tokens."""
    if width > log_laws.shape[-1]:
        raise InputError(f"paths of {width} candidates need a vocabulary as large", found=log_laws.shape[-1])
    best, token = torch.sort(log_laws.double().clamp(max=0.0), dim=-1, descending=True, stable=True)
    return best[..., :width], token[..., :width]
