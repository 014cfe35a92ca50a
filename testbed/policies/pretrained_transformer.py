"""The small language model on our own transformer: the same weights, our cache, our trees of drafts.

What a Llama-type model computes is what `testbed.policies.transformer` computes, once its weights have our names: rotary
positions by halves, RMS normalization, gated feed-forward layers, queries that share heads of keys. `pretrained.py` runs the
same weights through `transformers`; the two agree to rounding.
"""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor, cat

from testbed.core.errors import InputError
from testbed.policies.gguf_weights import LlamaWeights, read_llama
from testbed.policies.pretrained import START
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer

LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "output",
    "post_attention_layernorm": "feed_forward_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def pretrained_transformer(
    weights: LlamaWeights | None = None, *, context: int = 512, start: int = START
) -> Transformer:
    """Return a Llama-type model as a Transformer, float32.

    Parameters
    ----------
    weights : LlamaWeights | None   what `read_llama` gave; None = the small language model's, read now
    context : int                   longest context, at most what the model was made for
    start : int                     the token whose embedding our start id takes: every context begins with it

    Raises
    ------
    InputError   weights not installed; a context beyond the model's; weights of another architecture
    Gives        the law of `PretrainedPolicy` whose prompts begin with `start`, to rounding
    """
    weights = read_llama() if weights is None else weights
    shape, state = weights.config, weights.state
    if not 1 <= context <= shape["max_position_embeddings"]:
        most = shape["max_position_embeddings"]
        raise InputError(f"`context` must lie in 1..{most}, the positions the model was made for", found=context)
    config = TransformerConfig(
        vocab_size=shape["vocab_size"],
        width=shape["hidden_size"],
        layers=shape["num_hidden_layers"],
        heads=shape["num_attention_heads"],
        key_heads=shape["num_key_value_heads"],
        hidden=shape["intermediate_size"],
        context=context,
        rope_base=shape["rope_parameters"]["rope_theta"],
        epsilon=shape["rms_norm_eps"],
    )
    embedding = state["model.embed_tokens.weight"]
    named = {
        "embedding": cat([embedding, embedding[start : start + 1]]),
        "final_norm": state["model.norm.weight"],
        "head": state["lm_head.weight"],
    }
    for layer in range(config.layers):
        for theirs, ours in LAYER.items():
            named[f"layer{layer}.{ours}"] = state[f"model.layers.{layer}.{theirs}.weight"]
    return Transformer(config, named)


def prompts_without_start(prompts: list[Int64[Tensor, " _L"]], start: int = START) -> list[Int64[Tensor, " _L"]]:
    """Return prompts less their first token, which our start id stands for.

    Raises
    ------
    InputError   a prompt that does not begin with it
    """
    wrong = [number for number, prompt in enumerate(prompts) if not len(prompt) or int(prompt[0]) != start]
    if wrong:
        raise InputError(f"every prompt must begin with token {start}", found=f"prompt {wrong[0]} does not")
    return [prompt[1:] for prompt in prompts]
