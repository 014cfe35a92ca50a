"""One of our transformers as a `transformers.LlamaForCausalLM` with the same weights, and its `generate`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.gguf_weights import optional_module
from testbed.policies.pretrained_transformer import LAYER
from testbed.policies.transformer import Transformer


def with_start(model: Transformer, start: int = 0) -> Transformer:
    """Return the model with the embedding of token `start` given to our start id, which a Llama does not have."""
    weights = {name: weight.detach() for name, weight in model.weights.items()}
    embedding = weights["embedding"]
    weights["embedding"] = torch.cat([embedding[:-1], embedding[start : start + 1]])
    return Transformer(model.config, weights)


def llama_of(model: Transformer, start: int = 0) -> Any:
    """Return the same weights in the architecture of `transformers`, sharing their memory.

    Parameters
    ----------
    model : Transformer
    start : int            the token that stands for our start id in its contexts

    Raises
    ------
    InputError   experts, a start id with another embedding than `start`, or `transformers` not installed
    Gives        the law of the model at start + prompt, to rounding
    """
    config = model.config
    weights = {name: weight.detach() for name, weight in model.weights.items()}
    if config.experts:
        raise InputError("a Llama has no experts", found=config.experts)
    if not torch.equal(weights["embedding"][start], weights["embedding"][-1]):
        raise InputError("the start id must have the embedding of `start`", found=start, hint="use `with_start`")
    transformers = optional_module("transformers")
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        intermediate_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kept_heads,
        max_position_embeddings=config.context,
        rms_norm_eps=config.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.device("meta"):  # no room and no random numbers for weights that are replaced at once
        network = transformers.LlamaForCausalLM(shape).eval()
    rotary = network.model.rotary_emb
    network.model.rotary_emb = type(rotary)(config=shape)  # its buffers are computed, not loaded
    named = {
        "model.embed_tokens.weight": weights["embedding"][:-1],
        "model.norm.weight": weights["final_norm"],
        "lm_head.weight": weights["head"],
    }
    for layer in range(config.layers):
        for theirs, ours in LAYER.items():
            named[f"model.layers.{layer}.{theirs}.weight"] = weights[f"layer{layer}.{ours}"]
    network.load_state_dict(named, assign=True)
    network.generation_config.pad_token_id = 0  # never written: without an end token all rows are equally long
    return network


def generated(network: Any, prompt: Int64[Tensor, "B L"], count: int, **options: Any) -> Int64[Tensor, "B T"]:
    """Sample `count` tokens behind each prompt at temperature 1 from the whole vocabulary, as `generate` does by default."""
    tokens = network.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=count,
        **options,
    )
    return tokens[:, prompt.shape[1] :]
