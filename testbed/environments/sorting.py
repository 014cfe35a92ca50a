"""Sorting: write the digits of the prompt in increasing order, each as often as it occurs."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.environments.digit_strings import DigitStrings
from testbed.environments.parameters import require_whole
from testbed.environments.string_task import StringTask, length_range


class Sorting(StringTask):
    """Sort a string of digits; the right answer has the length of the string, and there is one.

        prompt "d_1 ... d_n="     right answer: the same digits with d_1 <= ... <= d_n

    Parameters
    ----------
    digits : int                most digits n, base^n <= 10^12
    least_digits : int | None   fewest digits (None: `digits`)
    base : int                  2..10; digits run over 0..base - 1
    per_length : int            most prompts of each length
    horizon : int | None        most response tokens, end included (None: just enough)

    Raises
    ------
    InputError   a parameter out of range; a horizon too short for the longest answer

    Examples
    --------
    >>> task = Sorting(digits=4)
    >>> task.decode(task.prompt_tokens(torch.tensor([4094]))[0]), task.decode(task.solution(torch.tensor([4094]))[0][0])
    ('4094=', '0449<eos>')
    >>> task.check("0449<eos>", 4094), task.check("049<eos>", 4094), task.check("4094<eos>", 4094)
    (1.0, 0.0, 0.0)
    """

    name = "sorting"

    def __init__(
        self,
        digits: int = 5,
        least_digits: int | None = None,
        base: int = 10,
        per_length: int = 10_000,
        horizon: int | None = None,
    ) -> None:
        base = require_whole("base", base, 2, 10)
        least, most = length_range("digits", digits, least_digits, base)
        self.horizon = require_whole("horizon", most + 1 if horizon is None else horizon, most + 1)
        self._take_symbols(*"0123456789"[:base], "=")
        self._take_strings(DigitStrings(base, least, most, per_length), equals=base)
        self.params = {"digits": most, "least_digits": least, "base": base}
        self.params |= {"per_length": per_length, "horizon": self.horizon}

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the sorted digits and the end token, and their mask."""
        length = self.prompt_lengths(group)[:, None] - 1
        digits = torch.nn.functional.pad(self.strings.digits(group), (0, self.horizon - self.strings.most))
        place = torch.arange(self.horizon)
        in_order = torch.where(place < length, digits, self.end).sort(1).values  # the end token is above all digits
        return torch.where(place <= length, in_order, 0), place <= length

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether every symbol occurs as often as in the string, and none stands before a smaller one."""
        length = self.prompt_lengths(group) - 1
        digits = self.strings.digits(group)
        shown = torch.arange(digits.shape[1]) < length[:, None]
        same = _counts(tokens, answer, self.vocab_size) == _counts(digits, shown, self.vocab_size)
        so_far = torch.where(answer, tokens, -1).cummax(1).values
        return same.all(1) & (~answer | (tokens >= so_far)).all(1)


def _counts(tokens: Int64[Tensor, "B T"], where: Bool[Tensor, "B T"], size: int) -> Int64[Tensor, "B V"]:
    """How often each symbol occurs at the chosen positions."""
    out = torch.zeros(len(tokens), size, dtype=torch.int64)
    return out.scatter_add(1, torch.where(where, tokens, 0), where.long())
