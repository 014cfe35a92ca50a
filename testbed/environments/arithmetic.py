"""A verifiable task small enough for a laptop: answer "a+b=" with the digits of the sum, then end.

The smallest member of the family that reinforcement learning from verifiable rewards is about: a prompt, a free-form
answer, a checker that says 0 or 1, answers of different lengths, and more than one right answer (leading zeros are read
as part of the number).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment

SYMBOLS = (*"0123456789", "+", "=", "<eos>", "<pad>")
PLUS, EQUALS, EOS, PAD = 10, 11, 12, 13
LONGEST = 18  # digits that fit a 64-bit integer


class ArithmeticTask(Environment):
    """Addition of two operands, with reward 1 for the right number ended in time and 0 otherwise.

        prompt x = (a, b) -> "a+b=" with operands in a fixed number of digits
        R(y) = 1 iff y = d_1 ... d_m <eos>, m >= 1, all d digits, and the number d_1 ... d_m equals a + b

    Tokens: 0-9 digits, 10 plus, 11 equals, 12 eos, 13 pad. Prompt number x stands for a = x // (max_operand + 1) and
    b = x % (max_operand + 1); `group` of a batch is this number.

    Parameters
    ----------
    max_operand : int       >= 0; both operands run over 0..max_operand
    horizon : int | None    most response tokens, eos included; None = just enough for the largest sum

    Raises
    ------
    InputError   if max_operand is negative, or horizon is not in 2..19

    Examples
    --------
    >>> task = ArithmeticTask()
    >>> task.decode(task.prompt_tokens(torch.tensor([38]))[0])
    '3+8='
    >>> task.check("11<eos>", 38), task.check("11", 38), task.check("12<eos>", 38)
    (1.0, 0.0, 0.0)
    """

    def __init__(self, max_operand: int = 9, horizon: int | None = None) -> None:
        if max_operand < 0:
            raise InputError("`max_operand` must be >= 0", found=max_operand)
        horizon = len(str(2 * max_operand)) + 1 if horizon is None else horizon
        if not 2 <= horizon <= LONGEST + 1:
            raise InputError(f"`horizon` must lie in 2..{LONGEST + 1} (digits and the end token)", found=horizon)
        self.max_operand, self.horizon = max_operand, horizon
        self.vocab_size, self.eos, self.pad = len(SYMBOLS), EOS, PAD
        self.n_prompts = (max_operand + 1) ** 2
        self.operand_digits = len(str(max_operand))
        self.prompt_length = 2 * self.operand_digits + 2

    def operands(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, " B"], Int64[Tensor, " B"]]:
        """Return the two operands of each prompt.

        Raises
        ------
        InputError   if a prompt number does not exist
        """
        if group.numel() and (int(group.min()) < 0 or int(group.max()) >= self.n_prompts):
            found = f"{int(group.min())}..{int(group.max())}"
            raise InputError(f"prompt numbers must lie in 0..{self.n_prompts - 1}", found=found)
        size = self.max_operand + 1
        return group // size, group % size

    def prompts(self) -> Int64[Tensor, " P"]:
        """Every prompt number."""
        return torch.arange(self.n_prompts)

    def sample_prompts(self, n: int, source: torch.Generator | SeedTree | int) -> Int64[Tensor, " n"]:
        """Draw n prompt numbers uniformly, with replacement, from a generator or a named stream."""
        tree = SeedTree(source) if isinstance(source, int) else source
        generator = tree["prompts"].torch_generator() if isinstance(tree, SeedTree) else tree
        return torch.randint(self.n_prompts, (n,), generator=generator)

    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of "a+b=", operands with leading zeros so that all prompts have one length."""
        first, second = (_digits(x, self.operand_digits) for x in self.operands(group))
        plus, equals = torch.full_like(group, PLUS)[:, None], torch.full_like(group, EQUALS)[:, None]
        return torch.cat([first, plus, second, equals], dim=1)

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the shortest right response of each prompt and its mask (0 on padding).

        Raises
        ------
        InputError   if the horizon is too short for one of the sums
        """
        total = torch.add(*self.operands(group))
        length = torch.tensor([len(str(x)) for x in total.tolist()], dtype=torch.int64)
        if length.numel() and int(length.max()) >= self.horizon:
            raise InputError("the horizon must hold the sum's digits and the end token", found=self.horizon)
        place = torch.arange(self.horizon)
        shift = (length[:, None] - 1 - place).clamp(min=0)
        digit = total[:, None] // 10**shift % 10
        mask = place <= length[:, None]
        return torch.where(mask, torch.where(place == length[:, None], EOS, digit), 0), mask

    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """1 where the digits before the first end token spell the sum, else 0; what follows it is ignored."""
        end = mask & (tokens == EOS)
        answer = mask & (end.cumsum(1) == 0)  # positions before the first end token
        number = torch.zeros_like(group)
        for t in range(tokens.shape[1]):
            number = torch.where(answer[:, t], number * 10 + tokens[:, t].clamp(0, 9), number)
        spelled = ~(answer & (tokens > 9)).any(1) & answer.any(1) & end.any(1)
        return (spelled & (number == torch.add(*self.operands(group)))).double()

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
        """Token ids of a text made of digits, "+", "=", "<eos>" and "<pad>".

        Raises
        ------
        InputError   at the first character that is no token
        """
        ids, rest = [], text
        while rest:
            found = next((i for i, symbol in enumerate(SYMBOLS) if rest.startswith(symbol)), None)
            if found is None:
                raise InputError("text must be made of digits, '+', '=', '<eos>' and '<pad>'", found=repr(rest[:5]))
            ids.append(found)
            rest = rest[len(SYMBOLS[found]) :]
        return ids

    def decode(self, ids: Sequence[int] | Int64[Tensor, " L"]) -> str:
        """Text of token ids; `encode` reads it back."""
        return "".join(SYMBOLS[int(i)] for i in ids)


def _digits(number: Int64[Tensor, " B"], width: int) -> Int64[Tensor, "B W"]:
    return number[:, None] // 10 ** torch.arange(width - 1, -1, -1) % 10
