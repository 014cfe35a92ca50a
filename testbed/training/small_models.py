"""Small transformers for a task: their sizes, and first weights from which a warm start learns."""

from __future__ import annotations

import torch

from testbed.core.seeds import SeedTree
from testbed.environments.verifiable import VerifiableTask
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer

EMBEDDING_SCALE = 0.3
ROPE_BASE = 10.0  # contexts are a dozen tokens long, or a few: no angle should stand still


def small_config(
    task: VerifiableTask,
    experts: int = 0,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    hidden: int | None = None,
) -> TransformerConfig:
    """Sizes with room for a prompt and its answer, and rotary angles for contexts this short.

    Parameters
    ----------
    task : VerifiableTask
    experts : int               per layer; 0 = dense
    width, layers, heads : int  width a multiple of 2 * heads
    hidden : int | None         of the feed-forward layer or of each expert (None: twice the width dense, the width with experts)

    Examples
    --------
    >>> from testbed import ArithmeticTask
    >>> config = small_config(ArithmeticTask(99), width=32)
    >>> config.hidden, config.context, config.parameter_count()
    (64, 11, 21568)
    """
    return TransformerConfig(
        vocab_size=task.vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        hidden=(width if experts else 2 * width) if hidden is None else hidden,
        experts=experts,
        context=1 + task.prompt_length + task.horizon,
        rope_base=ROPE_BASE,
    )


def first_weights(config: TransformerConfig, seed: SeedTree | int) -> Transformer:
    """First weights: nearly uniform laws, and embeddings small enough for the first layers to matter early.

    Examples
    --------
    >>> model = first_weights(TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8), seed=0)
    >>> model.vector().dtype, bool(model.weights["embedding"].std() < 0.5)
    (torch.float32, True)
    """
    tree = SeedTree(seed) if isinstance(seed, int) else seed
    model = Transformer.random(config, tree["weights"], dtype=torch.float32, sharpness=0.1)
    with torch.no_grad():
        model.weights["embedding"].mul_(EMBEDDING_SCALE)
    return model
