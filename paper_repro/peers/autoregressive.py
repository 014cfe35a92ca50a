"""One token per pass: our loop, our speculative engine without drafts, and `generate` of transformers, on the same weights.

All in float32 with a cache of keys and values, sampling at temperature 1 from the whole vocabulary, without an end token, so
that every arm writes the same number of tokens. Prompt lookup, the drafts that `generate` brings, is shown for what it is
worth where it can be had: one response at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from paper_repro.peers.case import Arms, Case
from paper_repro.peers.llama import generated, llama_of, with_start
from testbed.core.choices import RandomChooser
from testbed.environments.base import Environment
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout import rollout
from testbed.rollout.speculative import speculative_rollout

QUESTION = "Explain in a few sentences why the sky is blue and the sunset is red."
SIZES = {
    "1M": {"width": 128, "layers": 4, "heads": 4, "hidden": 384},
    "11M": {"width": 384, "layers": 6, "heads": 6, "hidden": 1024},
}
SMALL = {"width": 32, "layers": 2, "heads": 4, "hidden": 64, "key_heads": 2}
REAL = "SmolLM2-135M"


class Text(Environment):
    """Text of a given length without an end, worth nothing."""

    n_prompts, eos = 1, None

    def __init__(self, vocab_size: int, horizon: int) -> None:
        self.vocab_size, self.horizon = vocab_size, horizon

    def reward(self, tokens: Tensor, mask: Tensor, group: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros(len(tokens), dtype=torch.float64)


@cache
def subject(name: str) -> tuple[Transformer, Tensor]:
    """Return a model and the tokens of a prompt, the first of which stands for our start id."""
    if name == REAL:
        from testbed.policies.pretrained import chat_prompt
        from testbed.policies.pretrained_transformer import pretrained_transformer

        prompt = chat_prompt(QUESTION)
        return pretrained_transformer(start=int(prompt[0])), prompt
    config = TransformerConfig(vocab_size=512, context=128, **SIZES.get(name, SMALL))
    model = with_start(Transformer.random(config, 0, dtype=torch.float32, sharpness=2.0))
    return model, torch.arange(20)


def cases(smoke: bool) -> list[Case]:
    """A small random model and a middling one, then the real one, by number of responses."""
    if smoke:
        return [case("tiny", batch, 6) for batch in (1, 3)]
    random = [case(name, batch, 64) for name in SIZES for batch in (1, 8, 32)]
    return random + [case(REAL, batch, 32) for batch in (1, 8, 32)]


def case(name: str, batch: int, count: int) -> Case:
    """`batch` responses of `count` tokens."""
    arms = lambda: arms_of(name, batch, count)  # noqa: E731
    return Case(
        name=f"{name}, {batch} responses", unit="tokens", amount=batch * count, arms=arms, target="no slower (>= 1)"
    )


def arms_of(name: str, batch: int, count: int) -> Arms:
    """Make the arms, `generate` first."""
    model, prompt = subject(name)
    network, rows = llama_of(model, int(prompt[0])), prompt.expand(batch, -1)
    policy = TransformerPolicy(model, prompt[None, 1:], numerics=Numerics(dtype="float32"))
    text, group = Text(model.config.vocab_size, count), torch.zeros(batch, dtype=torch.int64)
    arms: dict[str, Any] = {
        "transformers generate": lambda: generated(network, rows, count),
        "rollout": lambda: rollout(text, policy, batch, RandomChooser(0), group=group),
        "speculative_rollout, no drafts": lambda: speculative_rollout(
            text, policy, batch, RandomChooser(0), group=group
        ),
    }
    if batch == 1:
        arms["transformers, prompt lookup"] = lambda: generated(network, rows, count, prompt_lookup_num_tokens=3)
    return arms
