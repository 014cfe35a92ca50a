"""One layer: attention, then feed-forward, each on a normalized copy of the residual stream and added to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.policies.transformer.attention import attend, keys_and_values, rotations, shared_rows
from testbed.policies.transformer.cache import KeyValueCache
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.experts import (
    chosen_experts,
    expert_shares,
    gated_unit,
    mixture_of_experts,
    router_logits,
)
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.operations import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the tokens of a pass stand: their positions, what they see, and where a cache keeps them (if there is one).

    Without `slots` a token is kept in the slot of its position; without `rows` the tokens belong to the cache's first rows.
    `turn` and `keep` follow from the rest and are the same for all layers of a pass; `ready` fills them in.
    """

    positions: Int64[Tensor, "B c"]
    visible: Bool[Tensor, "#B c S"]
    cache: KeyValueCache | None = None
    rows: Int64[Tensor, " B"] | None = None
    slots: Int64[Tensor, "B c"] | None = None
    turn: tuple[Float[Tensor, "B c 1 D"], Float[Tensor, "B c 1 D"]] | None = None
    keep: Bool[Tensor, "#B 1 Q S"] | None = None

    def ready(self, config: TransformerConfig, numerics: Numerics) -> Place:
        """Return the place with the rotations of its positions, and what each row of a head's queries sees."""
        if self.turn is not None:
            return self
        turn, keep = rotations(self.positions, config, numerics), shared_rows(self.visible, config)
        return replace(self, turn=turn, keep=keep)


def block(
    x: Float[Tensor, "B c d"],
    weights: Mapping[str, Tensor],
    layer: int,
    place: Place,
    config: TransformerConfig,
    numerics: Numerics,
    replayed: Int64[Tensor, "B c k"] | None = None,
) -> tuple[Float[Tensor, "B c d"], Int64[Tensor, "B c k"] | None]:
    """Residual stream after one layer, and the experts that acted (None when dense).

    Parameters
    ----------
    x : Float[Tensor, "B c d"]
    weights : prepared weights of the whole model
    layer : int
    place : Place
    config, numerics : of the model, of the engine
    replayed : experts to use instead of the router's own choice; -1 leaves the choice to the router
    """
    at, place = f"layer{layer}.", place.ready(config, numerics)
    assert place.turn is not None and place.keep is not None
    normed = rms_norm(x, weights[at + "attention_norm"], config.epsilon, numerics)
    key, value = keys_and_values(normed, weights, at, place.turn, config, numerics)
    if place.cache is not None:
        slots = place.positions if place.slots is None else place.slots
        key, value = place.cache.extended(layer, place.rows, slots, key, value, place.visible.shape[-1])
    x = x + attend(normed, key, value, place.keep, weights, at, place.turn, config, numerics)
    normed = rms_norm(x, weights[at + "feed_forward_norm"], config.epsilon, numerics)
    if not config.experts:
        return x + gated_unit(normed, weights, at, numerics), None
    logits = router_logits(normed, weights[at + "router"], layer, place.positions, config, numerics)
    chosen = chosen_experts(logits, config.experts_per_token)
    if replayed is not None:
        chosen = replayed.where(replayed >= 0, chosen)
    share = expert_shares(logits, chosen, numerics)
    return x + mixture_of_experts(normed, share, weights, at, config, numerics), chosen
