"""A real small language model as a policy: SmolLM2-135M-Instruct, on the numerics of a trainer or of a sampler.

The same weights answer in float32 (a trainer's full forward pass), in bfloat16 (a sampler's numbers) and with 8-bit
weights; decoding keeps a key-value cache and full passes do not, so that the two differ as engines do. `transformers`
supplies the architecture and is imported when a model is loaded, not before; `make real` installs it and the weights.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError, TooLarge
from testbed.policies.base import Decoder, Policy
from testbed.policies.gguf_weights import LlamaWeights, optional_module, read_llama, weights_path
from testbed.policies.row_caches import CachedModel, RowCaches
from testbed.policies.transformer.int8 import rounded_to_int8

START = 0  # "<|endoftext|>", what a text without a prompt follows
END = 2  # "<|im_end|>", what ends a response
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_ENTRIES = 2**28  # of one answer of `log_probs`: 2 GiB
ROWS_AT_ONCE = 8  # of one full pass


@runtime_checkable
class LanguageModel(CachedModel, Protocol):
    """A model with both ways to its logits: cached steps, and full passes."""

    def full_pass(self, tokens: Int64[Tensor, "n m"], start: int) -> Iterator[Float[Tensor, "k V"]]:
        """Logits after position start, start + 1, ... of each row, one row at a time."""
        ...


class PretrainedModel:
    """Weights, architecture and numerics; knows nothing of prompts. `load_pretrained` makes one.

    Parameters
    ----------
    network    a `transformers.LlamaForCausalLM`
    """

    def __init__(self, network: Any) -> None:
        self.network, self.vocab_size = network, int(network.config.vocab_size)

    def full_pass(self, tokens: Int64[Tensor, "n m"], start: int) -> Iterator[Float[Tensor, "k V"]]:
        """Logits after position start, start + 1, ... of each row, one row at a time, in the model's own dtype."""
        with torch.no_grad():
            hidden = self.network.model(tokens, use_cache=False).last_hidden_state[:, start:]
            for row in hidden:
                yield self.network.lm_head(row)

    def start(self) -> Any:
        """Return an empty key-value cache."""
        return optional_module("transformers").DynamicCache(config=self.network.config)

    def feed(self, tokens: Int64[Tensor, "n m"], cache: Any) -> Float[Tensor, "n V"]:
        """Append tokens to the cache; logits of the token after the last, in the model's own dtype."""
        with torch.no_grad():
            # by position: the cache's keyword has another name in other versions
            hidden = self.network.model(tokens, None, None, cache).last_hidden_state[:, -1]
            return self.network.lm_head(hidden)

    def select(self, cache: Any, index: Int64[Tensor, " k"]) -> Any:
        """Return a cache of some rows."""
        part = copy.deepcopy(cache)
        part.batch_select_indices(index)
        return part


def load_pretrained(
    dtype: str = "float32",
    *,
    int8_weights: bool = False,
    attention: str = "sdpa",
    weights: LlamaWeights | None = None,
) -> PretrainedModel:
    """Load the small language model under a choice of numerics.

    Parameters
    ----------
    dtype : str            "float32" or "bfloat16": of weights and activations
    int8_weights : bool    round every matrix of the blocks to 8 bits with a scale per output channel
    attention : str        which kernel `transformers` uses: "sdpa" (PyTorch's fused one) or "eager"
    weights                what `read_llama` gave, to read the file once for several models, which then share what they
                           need not convert; None = read it now

    Raises
    ------
    InputError   unknown dtype; weights or `transformers` not installed
    Numerics     log-probabilities are taken from the logits in float64, whatever dtype made the logits
    """
    if dtype not in DTYPES:
        raise InputError("`dtype` must be one of " + ", ".join(DTYPES), found=repr(dtype))
    weights = read_llama() if weights is None else weights
    transformers = optional_module("transformers")
    config = transformers.LlamaConfig(**weights.config, attn_implementation=attention, eos_token_id=END)
    with torch.device("meta"):  # no room and no random numbers for weights that are replaced at once
        network = transformers.LlamaForCausalLM(config).eval()
    rotary = network.model.rotary_emb
    network.model.rotary_emb = type(rotary)(config=config)  # its buffers are computed, not loaded
    rounded = {name for name, tensor in weights.state.items() if ".layers." in name and tensor.ndim == 2}
    state = {name: rounded_to_int8(w) if int8_weights and name in rounded else w for name, w in weights.state.items()}
    network.load_state_dict({name: w.to(DTYPES[dtype]) for name, w in state.items()}, assign=True)
    return PretrainedModel(network)


@functools.cache
def pretrained_tokenizer() -> Any:
    """Tokenizer of the small language model, as far as its weights file describes it (vocabulary, merges, chat form).

    Raises
    ------
    InputError   weights or `transformers` not installed
    """
    path = weights_path()
    return optional_module("transformers").AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def chat_prompt(question: str) -> Int64[Tensor, " L"]:
    """Token ids of a question in the model's chat form, up to where the answer starts.

    Raises
    ------
    InputError   weights or `transformers` not installed
    """
    tokenizer = pretrained_tokenizer()
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return torch.tensor(tokenizer(text, add_special_tokens=False).input_ids, dtype=torch.int64)


class PretrainedPolicy(Policy):
    """The small language model as a policy over 49,152 tokens.

    Parameters
    ----------
    model : LanguageModel            from `load_pretrained`; shared by everything derived from this policy
    prompts : sequence of tensors    token ids before the responses of group 0, 1, ...; None = one prompt, the start token
    group : Int64[Tensor, " B"]      which prompt each row answers; None = prompt 0 for all. Set by `at`

    Raises
    ------
    InputError   an empty prompt
    Numerics     `log_probs` and `score` are full forward passes, `decoder` keeps a key-value cache: where the two differ
                 is a mismatch between engines, not an error. Gradient terms are refused: 134 million parameters a row
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Int64[Tensor, " _L"]] | None = None,
        group: Int64[Tensor, " B"] | None = None,
    ) -> None:
        self.model, self.vocab_size, self.group = model, model.vocab_size, group
        self.prompts = [torch.tensor([START])] if prompts is None else list(prompts)
        if not self.prompts or min(len(prompt) for prompt in self.prompts) == 0:
            raise InputError("every prompt must have at least one token", found=f"{len(self.prompts)} prompts")

    def at(self, group: Int64[Tensor, " B"]) -> PretrainedPolicy:
        """Answer these prompts, one per row."""
        if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < len(self.prompts):
            found = f"{int(group.min())}..{int(group.max())}"
            raise InputError(f"prompt numbers must lie in 0..{len(self.prompts) - 1}", found=found)
        return PretrainedPolicy(self.model, self.prompts, group)

    def decoder(self, group: Int64[Tensor, " B"]) -> PretrainedDecoder:
        """Open a decoder with a key-value cache."""
        return PretrainedDecoder(self.at(group), group)

    def prompts_of(self, n: int) -> list[Int64[Tensor, " _L"]]:
        """Prompt of each of n rows.

        Raises
        ------
        InputError   the policy was conditioned on another number of rows
        """
        if self.group is not None and len(self.group) != n:
            raise InputError("as many rows must be asked about as `at` was given", found=f"{n}, not {len(self.group)}")
        return [self.prompts[0]] * n if self.group is None else [self.prompts[int(g)] for g in self.group]

    def response_logits(self, tokens: Int64[Tensor, "B T"]) -> Iterator[tuple[int, Float[Tensor, "T V"]]]:
        """Yield (row, logits at every position) from full passes, in the model's own dtype and without padding."""
        prompts = self.prompts_of(tokens.shape[0])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        for length in lengths.unique().tolist():
            for rows in torch.nonzero(lengths == length)[:, 0].split(ROWS_AT_ONCE):
                known = torch.cat([torch.stack([prompts[int(row)] for row in rows]), tokens[rows, :-1]], 1)
                for row, logits in zip(rows.tolist(), self.model.full_pass(known, length - 1), strict=True):
                    yield row, logits[: tokens.shape[1]]

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the next token from a full pass over prompt and prefix."""
        undrawn = torch.cat([prefix, prefix.new_zeros(prefix.shape[0], 1)], 1)
        last = {row: logits[-1] for row, logits in self.response_logits(undrawn)}
        return torch.log_softmax(torch.stack([last[row] for row in range(len(last))]).double(), -1)

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position, from full passes.

        Raises
        ------
        TooLarge   more than 2**28 numbers; `score` needs no such room
        """
        entries = tokens.numel() * self.vocab_size
        if entries > MOST_ENTRIES:
            raise TooLarge(
                f"`log_probs` must give at most {MOST_ENTRIES:,} numbers", found=f"{entries:,}", hint="`score`"
            )
        laws = torch.empty(*tokens.shape, self.vocab_size, dtype=torch.float64)
        for row, logits in self.response_logits(tokens):
            laws[row] = torch.log_softmax(logits.double(), -1)
        return laws

    def score(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability of the token at every position, one row's laws at a time."""
        found = torch.empty(tokens.shape, dtype=torch.float64)
        for row, logits in self.response_logits(tokens):
            found[row] = torch.log_softmax(logits.double(), -1).gather(-1, tokens[row, :, None])[:, 0]
        return found


class PretrainedDecoder(Decoder):
    """Decoder that feeds each token once; `next_logits` also tells what the engine said before normalization."""

    policy: PretrainedPolicy

    def __init__(self, policy: PretrainedPolicy, group: Int64[Tensor, " B"]) -> None:
        super().__init__(policy, group)
        self.caches = RowCaches(policy.model, policy.prompts_of(len(group)))

    def next_logits(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Logits of the token after each prefix, in the model's own dtype."""
        return self.caches.next_logits(prefix, rows)

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log law of the token after each prefix, in float64."""
        return torch.log_softmax(self.next_logits(prefix, rows).double(), -1)
