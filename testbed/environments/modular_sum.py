"""The sum of a few digits modulo a number: an answer of one or two tokens, with nothing to work it out on."""

from __future__ import annotations

from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.environments.digit_strings import DigitStrings
from testbed.environments.numerals import number_at, written
from testbed.environments.parameters import require_whole
from testbed.environments.string_task import StringTask, length_range


class ModularSum(StringTask):
    """Add the digits of a string modulo a number.

        prompt "d_1 ... d_k="     right answers: the decimal number (d_1 + ... + d_k) mod modulus, zeros in front allowed

    Parameters
    ----------
    terms : int                most digits k, base^k <= 10^12
    least_terms : int | None   fewest digits (None: `terms`)
    modulus : int              2..1000
    base : int                 2..10; digits run over 0..base - 1
    per_length : int           most prompts of each length
    horizon : int | None       most response tokens, end included (None: just enough)

    Raises
    ------
    InputError   a parameter out of range; a horizon too short for the longest answer

    Examples
    --------
    >>> import torch
    >>> task = ModularSum(terms=4)
    >>> task.decode(task.prompt_tokens(torch.tensor([3958]))[0]), task.check("5<eos>", 3958), task.check("4<eos>", 3958)
    ('3958=', 1.0, 0.0)
    """

    name = "modular_sum"

    def __init__(
        self,
        terms: int = 3,
        least_terms: int | None = None,
        modulus: int = 10,
        base: int = 10,
        per_length: int = 10_000,
        horizon: int | None = None,
    ) -> None:
        base = require_whole("base", base, 2, 10)
        least, most = length_range("terms", terms, least_terms, base)
        self.modulus = require_whole("modulus", modulus, 2, 1000)
        enough = len(str(self.modulus - 1)) + 1
        self.horizon = require_whole("horizon", enough if horizon is None else horizon, enough)
        self._take_symbols(*"0123456789", "=")
        self._take_strings(DigitStrings(base, least, most, per_length), equals=10)
        self.params = {"terms": most, "least_terms": least, "modulus": self.modulus, "base": base}
        self.params |= {"per_length": per_length, "horizon": self.horizon}

    def remainder(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Right number of each prompt."""
        self.require_prompts(group)
        return self.strings.digits(group).sum(1) % self.modulus

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the remainder's digits and the end token, and their mask."""
        return written(self.remainder(group), self.horizon, self.end)

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether the answer is a decimal number, and the right one."""
        number, spelled = number_at(tokens, answer)
        return spelled & (number == self.remainder(group))
