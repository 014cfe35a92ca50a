"""Addition of long numbers with a working: the totals of the columns, then the sum. Only the sum is checked."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.environments.digit_strings import DigitStrings
from testbed.environments.numerals import number_at, written
from testbed.environments.parameters import require_flag, require_whole
from testbed.environments.verifiable import VerifiableTask

PLUS, EQUALS, COMMA, ARROW = 10, 11, 12, 13


class WorkedAddition(VerifiableTask):
    """Add two numbers of several digits, on paper or in the head.

        prompt "a+b=", both with `digits` digits
        right answers: [any tokens >] s,  s a string of digits that spells a + b, zeros at its high end allowed

    The working is free: what stands up to the last ">" is not read. A warm start is shown the totals of the columns with their
    carries, units first, as two digits each: 57 + 68 is "15,12>125". The bare sum is right too.

    Parameters
    ----------
    digits : int            1..6, of each operand
    units_first : bool      whether the sum is written from its units, "521" in place of "125"
    per_length : int        most prompts
    horizon : int | None    most response tokens, end included (None: just enough for the whole working)

    Raises
    ------
    InputError   a parameter out of range; a horizon too short for the largest sum

    Examples
    --------
    >>> task, prompt = WorkedAddition(digits=2), torch.tensor([5768])
    >>> task.decode(task.prompt_tokens(prompt)[0]), task.decode(task.demonstration(prompt)[0][0])
    ('57+68=', '15,12>125<eos>')
    >>> [task.check(text, 5768) for text in ("125<eos>", "15>125<eos>", "9+9>>0125<eos>", "125>15<eos>")]
    [1.0, 1.0, 1.0, 0.0]
    """

    name = "worked_addition"

    def __init__(
        self,
        digits: int = 3,
        units_first: bool = False,
        per_length: int = 10_000,
        horizon: int | None = None,
    ) -> None:
        self.digits = require_whole("digits", digits, 1, 6)
        self.units_first = require_flag("units_first", units_first)
        self.strings = DigitStrings(10, 2 * self.digits, 2 * self.digits, per_length)
        self.working = 3 * self.digits  # two digits of each column and what stands behind them
        enough = self.working + self.digits + 2
        self.horizon = require_whole("horizon", enough if horizon is None else horizon, self.digits + 2)
        self._take_symbols(*"0123456789", "+", "=", ",", ">")
        self.n_prompts, self.prompt_length = self.strings.count, 2 * self.digits + 2
        self.params = {"digits": digits, "units_first": units_first, "per_length": per_length, "horizon": self.horizon}

    def operands(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B D"], Int64[Tensor, "B D"]]:
        """Digits of the two operands of each prompt, the highest first."""
        self.require_prompts(group)
        first, second = self.strings.digits(group).split(self.digits, 1)
        return first, second

    def total(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Sum of each prompt's operands."""
        return (sum(self.operands(group)) * 10 ** torch.arange(self.digits - 1, -1, -1)).sum(1)

    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of "a+b="."""
        first, second = self.operands(group)
        plus, equals = torch.full_like(group, PLUS)[:, None], torch.full_like(group, EQUALS)[:, None]
        return torch.cat([first, plus, second, equals], 1)

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the bare sum and the end token, and their mask."""
        return written(self.total(group), self.horizon, self.end, self.units_first)

    def demonstration(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the whole working, the sum and the end token, and their mask.

        Raises
        ------
        InputError   if the horizon is too short for them
        """
        require_whole("horizon", self.horizon, self.working + self.digits + 2)
        total = self.total(group)
        columns, carry = [], torch.zeros_like(group)
        for first, second in zip(*(x.flip(1).unbind(1) for x in self.operands(group)), strict=True):
            column = first + second + carry
            carry = column // 10
            columns += [carry, column % 10, torch.full_like(group, COMMA)]
        columns[-1] = torch.full_like(group, ARROW)
        tokens, mask = written(total, self.horizon - self.working, self.end, self.units_first)
        shown = torch.stack(columns, 1)
        return torch.cat([shown, tokens], 1), torch.cat([torch.ones_like(shown, dtype=torch.bool), mask], 1)

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether what stands behind the last ">" (if there is one) is a number, and the sum."""
        arrows = answer & (tokens == ARROW)
        behind = answer & (arrows.flip(1).cumsum(1).flip(1) == 0)
        number, spelled = number_at(tokens, behind, self.units_first)
        return spelled & (number == self.total(group))
