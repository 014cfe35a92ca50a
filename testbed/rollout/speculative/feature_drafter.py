"""A drafter that continues the target's features with one layer, and drafts the most confident of the trees it grows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.block import Place
from testbed.policies.transformer.cache import KeyValueCache
from testbed.policies.transformer.tree_decoder import visible_slots
from testbed.rollout.speculative.drafters import Drafter, Frontier, Opening
from testbed.rollout.speculative.feature_layer import FeatureLayer
from testbed.rollout.speculative.feature_record import FeatureRecord
from testbed.rollout.speculative.rounds import Round
from testbed.rollout.speculative.tree import ROOT, DraftTree, largest


@dataclass(frozen=True, slots=True, kw_only=True)
class FastGRPOShape:
    """How deep and wide a tree is grown before its most confident nodes are kept, by how many those are.

        L = clip(floor(log2((nodes + 1) / c)), shallowest, deepest),   k = min(nodes, widest)

    With `ConcurrencyBudget(peak=C, least=1)`, nodes + 1 = floor(C / B) wherever that is within bounds: few unfinished responses
    get deep and wide trees.

    Parameters
    ----------
    weakness : float              c > 0, smaller for a better drafter
    shallowest, deepest : int     1 <= shallowest <= deepest
    widest : int                  >= 1

    Raises
    ------
    InputError   numbers out of range

    References   FastGRPO (arXiv:2509.21792)

    Examples
    --------
    >>> [FastGRPOShape().of(nodes) for nodes in (1, 11, 39)]
    [(3, 1), (4, 8), (5, 8)]
    """

    weakness: float = 0.75
    shallowest: int = 3
    deepest: int = 5
    widest: int = 8

    def __post_init__(self) -> None:
        if not (0 < self.weakness < math.inf and 1 <= self.shallowest <= self.deepest and self.widest >= 1):
            rule = "`weakness` must be > 0, `widest` >= 1, and 1 <= `shallowest` <= `deepest`"
            raise InputError(rule, found=self)

    def of(self, nodes: int) -> tuple[int, int]:
        """Levels and width of the tree that `nodes` >= 1 candidates are chosen from."""
        levels = math.floor(math.log2((nodes + 1) / self.weakness))
        return min(max(levels, self.shallowest), self.deepest), min(nodes, self.widest)


class FeatureDrafter(Drafter):
    """Trees of a feature layer, grown level by level from its most confident nodes.

    Each level draws `width` children for each of the `width` nodes of the level before whose path is most probable under the
    layer; of all nodes drawn, the most probable paths are kept. The layer's keys and values of a response are kept from round
    to round. They always come from the target's own features: those of drafted tokens, made of predicted features, are
    replaced when the tokens are accepted. When the layer has learned, all are made anew.

    Parameters
    ----------
    layer : FeatureLayer              it may learn at any time, from `record` say
    shape : FastGRPOShape | None      None: the default

    Raises
    ------
    InputError                        asked about a target of another width

    Numerics                          nothing is waited for: no number goes from device to host

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> from testbed.rollout import rollout
    >>> from testbed.rollout.speculative import speculative_rollout
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi, env = TransformerPolicy(Transformer.random(config, seed=0)), PrefixTree(3, 5, rewards=[0.0] * 243)
    >>> drafter = FeatureDrafter(FeatureLayer.of(pi))
    >>> fast = speculative_rollout(env, pi, 20, KeyedChooser(1), drafter=drafter, nodes=4)
    >>> torch.equal(fast.tokens, rollout(env, pi, 20, KeyedChooser(1)).tokens)
    True
    """

    def __init__(self, layer: FeatureLayer, shape: FastGRPOShape | None = None) -> None:
        self.layer, self.shape = layer, shape or FastGRPOShape()
        self._opening: Opening | None = None
        self._record: FeatureRecord | None = None
        self._taught: list[tuple[int, int]] | None = None  # of the keys and values that are kept
        self.behind = 0  # no response has shown more pairs since the last draft

    @property
    def record(self) -> FeatureRecord:
        """What the latest rollout has shown, for all its responses, finished ones too.

        Raises
        ------
        InputError   no rollout yet
        """
        if self._record is None:
            raise InputError("a drafter has a record once a rollout has asked for drafts", found="no rollout")
        return self._record

    @torch.no_grad()
    def draft(self, frontier: Frontier, nodes: int) -> DraftTree:
        """Grow a tree behind every root and return its most probable `nodes` paths."""
        rows = self._followed(frontier)
        levels, width = self.shape.of(nodes)
        root = self.caught_up(frontier, rows)
        return largest(self._grown(frontier, rows, root, min(levels, nodes), width), nodes)

    def observe(self, finished: Round) -> None:
        """Write down tokens and features that a round showed, whether or not it had drafts."""
        rows = self._followed(finished.frontier)
        self.record.note(rows, finished)
        self.behind += finished.run.tokens.shape[1]

    def caught_up(self, frontier: Frontier, rows: Int64[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """Pass over the pairs that were shown since the last draft; return the feature predicted for every root."""
        record, last = self.record, frontier.known - 1  # a row has that many pairs
        start = torch.minimum(self.held[rows], last - 1)  # the last one is always passed
        most = frontier.longest - 1
        count, self.behind = min(max(self.behind, 1), most), 0
        slot = start[:, None] + torch.arange(count, device=rows.device)  # beyond a row's last: overwritten later
        inside = slot.clamp(max=record.context.shape[1] - 2)
        features = record.states[rows[:, None], inside]
        tokens = frontier.context.gather(1, (inside + 1).clamp(max=frontier.context.shape[1] - 1))
        self.cache.grow(most + count)
        visible = torch.arange(most, device=rows.device) <= slot[:, :, None]
        out = self._passed(frontier, rows, features, tokens, slot, visible, slot)
        self.held[rows] = last
        return out.gather(1, (last - start - 1)[:, None, None].expand(-1, 1, out.shape[-1]))[:, 0]

    def _grown(
        self, frontier: Frontier, rows: Int64[Tensor, " b"], root: Float[Tensor, "b d"], levels: int, width: int
    ) -> DraftTree:
        """All nodes drawn, level after level."""
        batch, device, held, most = len(rows), rows.device, self.held[rows], frontier.longest - 1
        self.cache.grow(most + (levels - 1) * width)
        features = root[:, None]  # of the nodes whose children are drawn
        above = torch.zeros(batch, 1, 0, dtype=torch.bool, device=device)  # which nodes passed so far they continue
        weight = torch.zeros(batch, 1, dtype=torch.float64, device=device)
        place = torch.full((batch, 1), ROOT, dtype=torch.int64, device=device)
        drawn: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        size = passed = 0
        for depth in range(1, levels + 1):
            step, token = self._children(features, frontier, width)
            parent = place[:, :, None].expand_as(token).flatten(1)
            weights, tokens = (weight[:, :, None] + step).flatten(1), token.flatten(1)
            drawn.append((tokens, parent, torch.full_like(tokens, depth), weights))
            if depth == levels:
                break
            chosen = most_confident(weights, width)
            origin = chosen // token.shape[2]  # which of the last nodes each continues
            weight, place, count = weights.gather(1, chosen), size + chosen, chosen.shape[1]
            size += tokens.shape[1]
            own = torch.eye(count, dtype=torch.bool, device=device).expand(batch, -1, -1)
            above = torch.cat([above.gather(1, origin[:, :, None].expand(-1, -1, above.shape[2])), own], 2)
            slot = held[:, None] + passed + torch.arange(count, device=device)
            passed += count
            before = features.gather(1, origin[:, :, None].expand(-1, -1, features.shape[2]))
            visible = visible_slots(held, above, most + passed)
            at = (held + depth - 1)[:, None].expand(-1, count)
            features = self._passed(frontier, rows, before, tokens.gather(1, chosen), at, visible, slot)
        tokens, parent, depths, weights = (torch.cat(parts, 1) for parts in zip(*drawn, strict=True))
        return DraftTree(tokens=tokens, parent=parent, depth=depths, log_weight=weights, levels=levels)

    def _children(
        self, features: Float[Tensor, "b m d"], frontier: Frontier, width: int
    ) -> tuple[Float[Tensor, "b m w"], Int64[Tensor, "b m w"]]:
        """Log-probabilities and ids of the most probable tokens after each node, ties to the lower id."""
        laws = self.layer.log_laws(features, frontier.weights, frontier.numerics).clamp(max=0.0)
        best, token = torch.sort(laws, dim=-1, descending=True, stable=True)
        return best[..., :width], token[..., :width]

    def _passed(
        self,
        frontier: Frontier,
        rows: Int64[Tensor, " b"],
        features: Float[Tensor, "b c d"],
        tokens: Int64[Tensor, "b c"],
        positions: Int64[Tensor, "b c"],
        visible: Bool[Tensor, "b c S"],
        slots: Int64[Tensor, "b c"],
    ) -> Float[Tensor, "b c d"]:
        """Pass of the layer over pairs that stand in these slots."""
        place = Place(
            positions=positions.clamp(max=self.layer.config.context - 1),
            visible=visible,
            cache=self.cache,
            rows=None if len(rows) == len(self.held) else rows,
            slots=slots,
        )
        return self.layer.predicted(features, tokens, frontier.weights, place, frontier.numerics)

    def _followed(self, frontier: Frontier) -> Int64[Tensor, " b"]:
        """Start over in another rollout, let go of keys that the layer made before it learned; return places of the rows."""
        opening = frontier.opening
        if opening is not self._opening:
            record = FeatureRecord.opened(frontier)
            rows, slots, width = record.states.shape
            if width != self.layer.config.width:
                found = f"{self.layer.config.width} and {width}"
                raise InputError("the layer and the target's stream must have one width", found=found)
            self._opening, self._record, self._taught = opening, record, None
            slots += self.shape.deepest * self.shape.widest  # those of drafted tokens stand behind all others
            self.cache = KeyValueCache(self.layer.config, rows, slots, record.states.dtype, record.states.device)
            self.held = torch.zeros_like(record.known)  # pairs of each response whose keys and values are kept
        taught = state_of(self.layer)
        if taught != self._taught:
            self.held.zero_()
            self._taught, self.behind = taught, frontier.longest  # no row has more pairs to pass
        return places(opening, frontier)


def places(opening: Opening, frontier: Frontier) -> Int64[Tensor, " b"]:
    """Where the unfinished responses stand among all that the rollout began with."""
    return torch.searchsorted(opening.rows, frontier.rows)


def state_of(layer: FeatureLayer) -> list[tuple[int, int]]:
    """Return what differs once a layer's weights were changed or exchanged."""
    return [(id(weight), weight._version) for weight in layer.parameters()]


def most_confident(weights: Float[Tensor, "b n"], count: int) -> Int64[Tensor, "b k"]:
    """Places of the `count` largest weights of each row, ties to the earlier one.

    Examples
    --------
    >>> most_confident(torch.tensor([[-1.0, -0.5, -1.0]]), 2).tolist()
    [[1, 0]]
    """
    return torch.sort(weights, dim=1, descending=True, stable=True).indices[:, :count]
