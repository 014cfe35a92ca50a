"""A verifiable task small enough for a laptop: answer "a+b=" with the digits of the sum, then end.

The smallest member of the family that reinforcement learning from verifiable rewards is about: a prompt, a free-form
answer, a checker that says 0 or 1, answers of different lengths, and more than one right answer (leading zeros are read
as part of the number).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.environments.numerals import digits_of, number_at, written
from testbed.environments.parameters import require_whole
from testbed.environments.verifiable import VerifiableTask

PLUS, EQUALS, EOS = 10, 11, 12
LONGEST = 18  # digits that fit a 64-bit integer


class ArithmeticTask(VerifiableTask):
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

    name = "addition"

    def __init__(self, max_operand: int = 9, horizon: int | None = None) -> None:
        max_operand = require_whole("max_operand", max_operand, 0)
        enough = len(str(2 * max_operand)) + 1
        self.max_operand = max_operand
        self.horizon = require_whole("horizon", enough if horizon is None else horizon, 2, LONGEST + 1)
        self.params = {"max_operand": self.max_operand, "horizon": self.horizon}
        self._take_symbols(*"0123456789", "+", "=")
        self.n_prompts = (max_operand + 1) ** 2
        self.operand_digits = len(str(max_operand))
        self.prompt_length = 2 * self.operand_digits + 2

    def operands(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, " B"], Int64[Tensor, " B"]]:
        """Return the two operands of each prompt.

        Raises
        ------
        InputError   if a prompt number does not exist
        """
        self.require_prompts(group)
        size = self.max_operand + 1
        return group // size, group % size

    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of "a+b=", operands with leading zeros so that all prompts have one length."""
        first, second = (digits_of(x, self.operand_digits) for x in self.operands(group))
        plus, equals = torch.full_like(group, PLUS)[:, None], torch.full_like(group, EQUALS)[:, None]
        return torch.cat([first, plus, second, equals], dim=1)

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the shortest right response of each prompt and its mask (0 on padding).

        Raises
        ------
        InputError   if the horizon is too short for one of the sums
        """
        return written(torch.add(*self.operands(group)), self.horizon, EOS)

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether the answer is made of digits and spells the sum."""
        number, spelled = number_at(tokens, answer)
        return spelled & (number == torch.add(*self.operands(group)))
