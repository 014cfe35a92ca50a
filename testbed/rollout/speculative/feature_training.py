"""Teaching a feature layer with what its target wrote: ahead of time, and one step after every rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean
from testbed.core.seeds import SeedTree
from testbed.policies.transformer.forward import full_place
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.rollout.speculative.feature_layer import FeatureLayer
from testbed.rollout.speculative.feature_record import FeatureRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRecipe:
    """How a feature layer is taught: AdamW at a constant rate on shuffled responses.

    Parameters
    ----------
    steps, batch : int              updates; responses per update
    rate : float                    learning rate
    feature_weight : float          >= 0, of the smooth distance between predicted and true feature
    law_weight : float              >= 0, of the cross-entropy between the laws read from them; not both 0
    decay : float                   weight decay

    Raises
    ------
    InputError   a size below 1, or a rate or weight outside its range

    References   the weights are those of FastGRPO (arXiv:2509.21792)
    """

    steps: int = 200
    batch: int = 64
    rate: float = 3e-3
    feature_weight: float = 2.0
    law_weight: float = 0.1
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be >= 1", found=getattr(self, name))
        least, most = sorted((self.feature_weight, self.law_weight))
        if not (self.rate > 0 and least >= 0 and most > 0):
            found = f"rate={self.rate}, feature_weight={self.feature_weight}, law_weight={self.law_weight}"
            raise InputError("`rate` must be > 0 and the weights >= 0, not both 0", found=found)


def feature_loss(
    layer: FeatureLayer,
    record: FeatureRecord,
    weights: Mapping[str, Tensor],
    numerics: Numerics | None = None,
    *,
    feature_weight: float = 2.0,
    law_weight: float = 0.1,
) -> Float[Tensor, ""]:
    """Mean over responses of the mean over their learnable tokens s, features and targets from the record.

        l_s = feature_weight * mean_i smooth(g_si - f_si) - law_weight * sum_v p_s(v) log q_s(v)
        smooth(x) = x^2 / 2 where |x| < 1, else |x| - 1/2

    Prompt tokens are attended to and not learned; responses without a learnable token do not count.

    Parameters
    ----------
    layer : FeatureLayer
    record : FeatureRecord
    weights, numerics         of the target

    Raises
    ------
    InputError                no learnable token

    Gives                     no gradient in the target's weights
    """
    learnable = record.learnable()[:, 1:]
    counted = learnable.any(1)
    if not bool(counted.any()):
        raise InputError("a feature layer learns from responses of two tokens or more", found="none")
    numerics, states = numerics or Numerics(), record.states.detach()
    before, true = states[:, :-1], states[:, 1:]
    place = full_place(before.shape[0], before.shape[1], before.device)
    guess = layer.predicted(before, record.context[:, 1:], weights, place, numerics)
    wide = guess.to(numerics.wide), true.to(numerics.wide)
    distance = torch.nn.functional.smooth_l1_loss(*wide, reduction="none").mean(-1).double()
    law = layer.log_laws(true, weights, numerics).exp()
    surprise = -(law * layer.log_laws(guess, weights, numerics)).sum(-1)
    each = masked_mean(feature_weight * distance + law_weight * surprise, learnable, dim=1)
    return masked_mean(each, counted)


def teach_features(
    layer: FeatureLayer,
    policy: TransformerPolicy,
    batch: SegmentedBatch,
    recipe: FeatureRecipe | None = None,
    seed: SeedTree | int = 0,
) -> list[float]:
    """Fit a layer, in place, to responses that the policy wrote; return the loss before every update.

    Parameters
    ----------
    layer : FeatureLayer            of the policy's model
    policy : TransformerPolicy      the batch's author; its weights are read and never changed
    batch : SegmentedBatch
    recipe : FeatureRecipe | None   None: the default
    seed : SeedTree | int           address of the order of the responses

    Raises
    ------
    InputError   responses too short to learn from: none of two tokens

    Gives        the same losses and weights for the same arguments and number of threads

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> from testbed.rollout import rollout
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0, sharpness=3.0))
    >>> batch = rollout(PrefixTree(3, 5, rewards=[0.0] * 243), pi, 40, KeyedChooser(0))
    >>> losses = teach_features(FeatureLayer.of(pi), pi, batch, FeatureRecipe(steps=30, batch=40))
    >>> losses[-1] < losses[0]
    True
    """
    recipe = recipe or FeatureRecipe()
    tree = SeedTree(seed) if isinstance(seed, int) else seed
    useful = torch.nonzero(batch.lengths > 1)[:, 0]
    if not len(useful):
        raise InputError("a feature layer learns from responses of two tokens or more", found="none")
    record = FeatureRecord.of(policy, batch)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    size = min(recipe.batch, len(useful))
    losses = []
    for step in range(recipe.steps):
        passed, place = divmod(step, len(useful) // size)
        order = torch.randperm(len(useful), generator=tree["order"][passed].torch_generator())
        rows = useful[order[place * size :][:size]].to(record.states.device)
        losses.append(_stepped(layer, optimizer, policy, record.select(rows), recipe))
    return losses


def online_optimizer(layer: FeatureLayer, rate: float = 1e-4, decay: float = 0.0) -> torch.optim.Optimizer:
    """AdamW for a layer that learns along with its target: one `online_step` per rollout, always with this optimizer."""
    return torch.optim.AdamW(layer.parameters(), lr=rate, weight_decay=decay)


def online_step(
    layer: FeatureLayer,
    optimizer: torch.optim.Optimizer,
    policy: TransformerPolicy,
    record: FeatureRecord,
    recipe: FeatureRecipe | None = None,
) -> float:
    """Take one optimizer step on the features that a rollout showed; return the loss before it.

    Parameters
    ----------
    layer, optimizer                of `online_optimizer`
    policy : TransformerPolicy      the target, as it was when it wrote them
    record : FeatureRecord          `FeatureDrafter.record` of the rollout: no further pass of the target is needed
    recipe : FeatureRecipe | None   its weights of the two losses (None: the default's)

    Raises
    ------
    InputError   responses too short to learn from: none of two tokens

    Gives        drafts of other quality, never another law of the responses: a drafter may learn whenever it likes from what it
                 has been shown (V3)
    """
    return _stepped(layer, optimizer, policy, record, recipe or FeatureRecipe())


def _stepped(
    layer: FeatureLayer,
    optimizer: torch.optim.Optimizer,
    policy: TransformerPolicy,
    record: FeatureRecord,
    recipe: FeatureRecipe,
) -> float:
    with torch.no_grad():
        weights = policy.weights()
    terms = {"feature_weight": recipe.feature_weight, "law_weight": recipe.law_weight}
    with torch.enable_grad():
        optimizer.zero_grad()
        loss = feature_loss(layer, record, weights, policy.numerics, **terms)
        loss.backward()
        optimizer.step()
    return float(loss.detach())
