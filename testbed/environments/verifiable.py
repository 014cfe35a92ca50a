"""What verifiable tasks share: symbols, prompts of several lengths, responses that must end, and a checker that says 0 or 1."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment

END, PADDING = "<eos>", "<pad>"


class VerifiableTask(Environment):
    """Numbered prompts, free-form responses, and an exact checker of what stands before the first end token.

        R(y) = 1 iff y = y_1 ... y_m <eos> within the horizon and y_1 ... y_m is a right answer to the prompt

    A concrete task says which answers are right (`verified`), writes its prompts, and knows the shortest right response
    (`solution`). Tokens are symbols in the order of `symbols`, the end token and the padding last. `group` of a batch is
    the prompt's number, 0 .. n_prompts - 1.

    Attributes
    ----------
    name : str                  in the registry `testbed.environments.tasks.TASKS`
    params : dict               plain values; `make_task(name, **params)` makes this task again
    symbols : tuple of str
    pad : int                   token behind a prompt that is shorter than the longest
    prompt_length : int         tokens of the longest prompt
    """

    name: ClassVar[str]
    params: dict[str, Any]
    symbols: tuple[str, ...]
    pad: int
    prompt_length: int

    @property
    def end(self) -> int:
        """The end token, `eos`, which every verifiable task has."""
        return len(self.symbols) - 2

    def _take_symbols(self, *symbols: str) -> None:
        """Set the vocabulary: these symbols, then the end token and the padding."""
        self.symbols = (*symbols, END, PADDING)
        self.vocab_size, self.eos, self.pad = len(self.symbols), self.end, self.end + 1

    # ------------------------------------------------------------------------------------------- what a task says
    @abstractmethod
    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of prompts, packed from the left, `pad` behind the shorter ones; L = `prompt_length`.

        Raises
        ------
        InputError   if a prompt number does not exist
        """

    @abstractmethod
    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the shortest right response of each prompt, its end token included, and its mask (0 on padding).

        Raises
        ------
        InputError   if the horizon is too short for one of them
        """

    @abstractmethod
    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether the tokens where `answer` holds, those before the first end token, are a right answer."""

    def demonstration(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the right response a warm start imitates: the shortest, unless the task has a working to show."""
        return self.solution(group)

    def prompt_lengths(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Tokens of each prompt, its padding left out."""
        self.require_prompts(group)
        return torch.full_like(group, self.prompt_length)

    def origin(self) -> str:
        """What outside the library the task is made of, with its version; "" for nothing."""
        return ""

    # ------------------------------------------------------------------------------------------- what all tasks do
    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """1 where what stands before the first end token is a right answer, else 0; what follows it is ignored."""
        end = mask & (tokens == self.end)
        answer = mask & (end.cumsum(1) == 0)
        return (end.any(1) & self.verified(tokens, answer, group)).double()

    def require_prompts(self, group: Int64[Tensor, " B"]) -> None:
        """Raise InputError if a prompt number does not exist."""
        if group.numel() and (int(group.min()) < 0 or int(group.max()) >= self.n_prompts):
            found = f"{int(group.min())}..{int(group.max())}"
            raise InputError(f"prompt numbers must lie in 0..{self.n_prompts - 1}", found=found)

    def prompts(self) -> Int64[Tensor, " P"]:
        """Every prompt number."""
        return torch.arange(self.n_prompts)

    def sample_prompts(self, n: int, source: torch.Generator | SeedTree | int) -> Int64[Tensor, " n"]:
        """Draw n prompt numbers uniformly, with replacement, from a generator or a named stream."""
        tree = SeedTree(source) if isinstance(source, int) else source
        generator = tree["prompts"].torch_generator() if isinstance(tree, SeedTree) else tree
        return torch.randint(self.n_prompts, (n,), generator=generator)

    def check(self, text: str, prompt: int) -> float:
        """Reward of one response written as text.

        Raises
        ------
        InputError   if the response is longer than the horizon
        """
        ids = self.encode(text)
        if len(ids) > self.horizon:
            raise InputError(f"a response has at most {self.horizon} tokens", found=len(ids))
        tokens = torch.tensor([ids], dtype=torch.int64).reshape(1, -1)
        return float(self.reward(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([prompt])))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text made of the task's symbols; the longest symbol that fits is taken.

        Raises
        ------
        InputError   at the first character that is no token
        """
        by_length = sorted(range(self.vocab_size), key=lambda i: -len(self.symbols[i]))
        ids, rest = [], text
        while rest:
            found = next((i for i in by_length if rest.startswith(self.symbols[i])), None)
            if found is None:
                raise InputError(f"text must be made of {_listed(self.symbols)}", found=repr(rest[:5]))
            ids.append(found)
            rest = rest[len(self.symbols[found]) :]
        return ids

    def decode(self, ids: Sequence[int] | Int64[Tensor, " L"]) -> str:
        """Text of token ids; `encode` reads it back."""
        return "".join(self.symbols[int(i)] for i in ids)


def _listed(symbols: tuple[str, ...]) -> str:
    digits = [s for s in symbols if len(s) == 1 and s in "0123456789"]
    others = [repr(s) for s in symbols if s not in digits]
    words = ([f"the digits {digits[0]} to {digits[-1]}"] if digits else []) + others
    return f"{', '.join(words[:-1])} and {words[-1]}"
