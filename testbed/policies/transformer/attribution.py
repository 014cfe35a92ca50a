"""Which ingredient of an engine causes how much mismatch: each difference between two engines toggled alone.

Trainer and sampler are two `Numerics` over the same weights. For every ingredient in which they differ, the trainer scores
the same responses twice: as it is, and with that one ingredient taken from the sampler. What the two say about the drawn
tokens differs by that ingredient's mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import log1m_exp
from testbed.core.shapes import require_shape
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.routing import Routes, flipped_layers
from testbed.policies.transformer.stepwise import StepwisePolicy

INGREDIENTS = ("dtype", "weights", "reduction", "router")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What two engines say about the same tokens, p the trainer's law and q the sampler's.

    Attributes
    ----------
    ingredient : str                 what differs between them
    trainer, sampler : Numerics
    tokens : int                     how many were compared
    sd_displacement : float          standard deviation of eps = logit p - logit q of the drawn token, nats
    largest_log_ratio : float        max |log p - log q| of the drawn token, nats; 0 means bitwise equality
    kl : float                       mean over the prefixes of KL(q || p), nats, over the whole vocabulary
    flips : tuple of int             flips[j] = tokens with j flipped layers; () for a dense model
    sd_by_flips : tuple of float     sd of eps among these tokens; NaN where there are none
    """

    ingredient: str
    trainer: Numerics
    sampler: Numerics
    tokens: int
    sd_displacement: float
    largest_log_ratio: float
    kl: float
    flips: tuple[int, ...] = ()
    sd_by_flips: tuple[float, ...] = ()


def attribute(
    policy: TransformerPolicy,
    sampler: Numerics,
    tokens: Int64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> list[Mismatch]:
    """Measure the mismatch of each ingredient alone, of all together, and of all under routing replay.

    Parameters
    ----------
    policy : TransformerPolicy        the trainer, with its own numerics, conditioned on the rows' prompts
    sampler : Numerics                the other engine
    tokens : Int64[Tensor, "B T"]     responses, best drawn by the sampler
    mask : Bool[Tensor, "B T"] | None which of them are real (None: all)

    Returns
    -------
    list of Mismatch   "none" (the trainer against itself); those of dtype, weights, reduction and router that differ; "cache"
                       (the trainer's arithmetic in cached steps); "all"; for experts also "all, replayed"; last
                       "fixed" (both engines in the fixed order, the sampler in cached steps)

    Raises
    ------
    InputError   a mask of another shape, or one that selects nothing

    Gives        "none" and "fixed" are exactly 0

    Examples
    --------
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> model = Transformer.random(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), seed=0)
    >>> trainer = TransformerPolicy(model, numerics=Numerics(dtype="float32"))
    >>> found = attribute(trainer, Numerics(dtype="bfloat16"), torch.tensor([[0, 1, 2], [2, 2, 1]]))
    >>> [m.ingredient for m in found], found[0].largest_log_ratio, found[-1].largest_log_ratio
    (['none', 'dtype', 'cache', 'all', 'fixed'], 0.0, 0.0)
    """
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    require_shape("mask", mask, tuple(tokens.shape))
    if not bool(mask.any()):
        raise InputError("`mask` must select a token", found="none")
    trainer = policy.numerics.but(cached=False)
    pairs = {"none": (trainer, trainer)}
    for name in INGREDIENTS:
        noise = {"router_noise": sampler.router_noise, "router_seed": sampler.router_seed} if name == "router" else {}
        changed = trainer.but(**{name: getattr(sampler, name)}, **noise)
        if changed != trainer and (name != "router" or policy.config.experts):
            pairs[name] = (trainer, changed)
    pairs["cache"] = (trainer, trainer.but(cached=True))
    pairs["all"] = (trainer, sampler)
    fixed = trainer.but(reduction="fixed")
    pairs["fixed"] = (fixed, fixed.but(cached=True))
    out = []
    for name, (one, other) in pairs.items():
        if name == "fixed" and policy.config.experts:
            out.append(_replayed(policy, trainer, sampler, tokens, mask))
        out.append(compare(name, policy.under(one), policy.under(other), tokens, mask))
    return out


def compare(
    ingredient: str,
    trainer: TransformerPolicy,
    sampler: TransformerPolicy,
    tokens: Int64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Mismatch:
    """Compare two engines on the same responses; one whose numerics say `cached` scores them in one-token steps."""
    p, experts_p = _laws(trainer, tokens)
    q, experts_q = _laws(sampler, tokens)
    eps = (displacement_law(p) - displacement_law(q)).gather(-1, tokens[..., None])[..., 0][mask]
    log_ratio = (p - q).gather(-1, tokens[..., None])[..., 0][mask]
    flips: tuple[int, ...] = ()
    by_flips: tuple[float, ...] = ()
    if experts_p is not None and experts_q is not None:
        count = flipped_layers(experts_p, experts_q, tokens.shape[1])[mask]
        which = [count == j for j in range(trainer.config.layers + 1)]
        flips = tuple(int(w.sum()) for w in which)
        by_flips = tuple(float(eps[w].std(correction=0)) if bool(w.any()) else float("nan") for w in which)
    return Mismatch(
        ingredient=ingredient,
        trainer=trainer.numerics,
        sampler=sampler.numerics,
        tokens=int(mask.sum()),
        sd_displacement=float(eps.std(correction=0)),
        largest_log_ratio=float(log_ratio.abs().max()),
        kl=float((q.exp() * (q - p)).sum(-1)[mask].mean()),
        flips=flips,
        sd_by_flips=by_flips,
    )


def displacement_law(log_p: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Log-odds of every token: log p - log(1 - p)."""
    return log_p - log1m_exp(log_p)


def _replayed(
    policy: TransformerPolicy, trainer: Numerics, sampler: Numerics, tokens: Tensor, mask: Tensor
) -> Mismatch:
    """All ingredients, the trainer using the experts that the sampler recorded."""
    other = policy.under(sampler)
    routes = _laws(other, tokens)[1]
    assert routes is not None
    return compare("all, replayed", policy.under(trainer).replaying(routes), other, tokens, mask)


@torch.no_grad()
def _laws(policy: TransformerPolicy, tokens: Tensor) -> tuple[Tensor, Routes | None]:
    """Laws at every position, and the experts that gave them."""
    if policy.numerics.cached:
        laws, decoder = StepwisePolicy(policy).stepped(tokens)
        return laws, decoder.routes() if policy.config.experts else None
    return policy.log_probs(tokens), policy.routes(tokens) if policy.config.experts else None
