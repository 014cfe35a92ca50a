"""Mismatch at tiny scale, second way: two engines that run the same tiny transformer, dense or a mixture of experts.

The sampler computes in bfloat16 with cached keys and values, the trainer in float32 in full passes. Nothing is fitted to the
paper; the mixture of experts has its model's layout of routing (24 layers, 60 experts, 4 per token), but
width 64, 256 tokens and random weights, the last layer scaled so that laws have all degrees of confidence.

Decoders give log-probabilities, so a perturbation delta_j here is a difference of these: the difference of logits up to one
constant per position.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from paper_repro.mismatch_samples import NoiseSample, TokenSample
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy, flipped_layers

SHARPNESS, TOP = 6.0, 20
ENTRIES = "the 20 tokens the sampler finds likeliest, at every position; trainer's log-probability minus sampler's"
SAMPLER, TRAINER = Numerics(dtype="bfloat16"), Numerics(dtype="float32", cached=False)


def configuration(model: str, smoke: bool) -> TransformerConfig:
    """Return the shape of the tiny model for a column of the paper, "Dense" or "MoE"."""
    layers, experts = (4, 8) if smoke else (24, 60)
    if model == "Dense":
        return TransformerConfig(vocab_size=256, width=64, layers=layers, heads=4, hidden=128)
    return TransformerConfig(
        vocab_size=256, width=64, layers=layers, heads=4, hidden=32, experts=experts, experts_per_token=4
    )


@cache
def draw(model: str, smoke: bool = False) -> tuple[TokenSample, NoiseSample]:
    """Draw responses with the sampler and score them with the trainer.

    Parameters
    ----------
    model : str     "Dense" or "MoE"
    smoke : bool    a smaller model and fewer tokens

    Returns
    -------
    (TokenSample, NoiseSample)   tokens, and perturbed logits with their flips if there are experts
    """
    seeds = SeedTree("tiny engines")
    config = configuration(model, smoke)
    weights = Transformer.random(config, seeds["weights"], sharpness=SHARPNESS)
    rows, horizon = (8, 8) if smoke else (128, 24)
    group, chooser = torch.zeros(rows, dtype=torch.int64), RandomChooser(seeds["tokens"])
    decoder = TransformerPolicy(weights, numerics=SAMPLER).decoder(group)
    tokens, laws = torch.zeros(rows, 0, dtype=torch.int64), []
    for _ in range(horizon):
        laws.append(decoder.next_log_probs(tokens, torch.arange(rows)))
        tokens = torch.cat([tokens, chooser.choose(laws[-1].exp())[:, None]], 1)
    behavior = torch.stack(laws, 1)
    trainer = TransformerPolicy(weights, numerics=TRAINER)
    with torch.no_grad():
        target = trainer.log_probs(tokens)
    flips = flipped_layers(trainer.routes(tokens), decoder.routes(), horizon) if config.experts else None
    return _samples(f"tiny transformer, {model}", model, tokens, target, behavior, flips)


def _samples(
    name: str, model: str, tokens: Tensor, target: Tensor, behavior: Tensor, flips: Tensor | None
) -> tuple[TokenSample, NoiseSample]:
    rows, horizon = tokens.shape
    p, q = (law.gather(-1, tokens[..., None])[..., 0] for law in (target, behavior))
    ones = [torch.log_softmax(law.float(), -1).gather(-1, tokens[..., None])[..., 0] for law in (target, behavior)]
    response = torch.arange(rows)[:, None].expand(rows, horizon)
    drawn = TokenSample(
        name=name,
        model=model,
        response=response.flatten().numpy(),
        logp_target=p.flatten().numpy(),
        logp_behavior=q.flatten().numpy(),
        finite=((ones[0] < 0) & (ones[1] < 0)).flatten().numpy(),
    )
    top = behavior.topk(TOP, -1).indices
    position = torch.arange(rows * horizon).reshape(rows, horizon)
    kept = NoiseSample(
        name=name,
        model=model,
        entries=ENTRIES,
        response=np.repeat(response.flatten().numpy(), TOP),
        position=np.repeat(position.flatten().numpy(), TOP),
        delta=(target - behavior).gather(-1, top).flatten().numpy(),
        flips=None if flips is None else np.repeat(flips.flatten().numpy(), TOP),
        rank=np.tile(np.arange(TOP), rows * horizon),
    )
    return drawn, kept
