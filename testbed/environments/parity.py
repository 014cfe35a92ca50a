"""The parity of a string of bits, at once or after a working: the running parity, or anything else."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.environments.digit_strings import DigitStrings
from testbed.environments.parameters import require_flag, require_whole
from testbed.environments.string_task import StringTask, length_range


class Parity(StringTask):
    """Say whether the number of ones is odd.

        prompt "b_1 ... b_n="     right answers: (b_1 + ... + b_n) mod 2
        with a working            any tokens, then this bit: the last token before the end is the answer

    A warm start is shown the running parity b_1, b_1 + b_2, ... mod 2, whose last bit is the answer; the bare bit is right too.
    A response that ends in a random bit is right half of the time.

    Parameters
    ----------
    bits : int                1..39, most bits n
    least_bits : int | None   fewest bits (None: `bits`)
    working : bool            whether tokens before the answer are allowed, and shown
    per_length : int          most prompts of each length
    horizon : int | None      most response tokens, end included (None: just enough for what a warm start is shown)

    Raises
    ------
    InputError   a parameter out of range

    Examples
    --------
    >>> task = Parity(bits=4, working=True)
    >>> task.decode(task.prompt_tokens(torch.tensor([11]))[0]), task.decode(task.demonstration(torch.tensor([11]))[0][0])
    ('1011=', '1101<eos>')
    >>> task.check("1101<eos>", 11), task.check("1<eos>", 11), task.check("10<eos>", 11)
    (1.0, 1.0, 0.0)
    """

    name = "parity"

    def __init__(
        self,
        bits: int = 12,
        least_bits: int | None = None,
        working: bool = True,
        per_length: int = 10_000,
        horizon: int | None = None,
    ) -> None:
        least, most = length_range("bits", bits, least_bits, base=2)
        self.working = require_flag("working", working)
        enough = most + 1 if working else 2
        self.horizon = require_whole("horizon", enough if horizon is None else horizon, 2)
        self._take_symbols("0", "1", "=")
        self._take_strings(DigitStrings(2, least, most, per_length), equals=2)
        self.params = {"bits": most, "least_bits": least, "working": working}
        self.params |= {"per_length": per_length, "horizon": self.horizon}

    def odd(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """1 where the number of ones is odd, else 0."""
        self.require_prompts(group)
        return self.strings.digits(group).sum(1) % 2

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the bare bit and the end token, and their mask."""
        tokens = torch.stack([self.odd(group), torch.full_like(group, self.end)], 1)
        tokens = torch.nn.functional.pad(tokens, (0, self.horizon - 2))
        return tokens, (torch.arange(self.horizon) < 2).expand(len(group), -1)

    def demonstration(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the running parity and the end token, and their mask; without a working, the bare bit.

        Raises
        ------
        InputError   if the horizon is too short for a string's running parity
        """
        if not self.working:
            return self.solution(group)
        length = self.prompt_lengths(group)[:, None] - 1
        require_whole("horizon", self.horizon, self.strings.most + 1)
        running = self.strings.digits(group).cumsum(1) % 2
        running = torch.nn.functional.pad(running, (0, self.horizon - running.shape[1]))
        place = torch.arange(self.horizon)
        return torch.where(place < length, running, torch.where(place == length, self.end, 0)), place <= length

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether the last token is the right bit; without a working, whether it is the only one too."""
        count = answer.sum(1)
        last = answer & (answer.cumsum(1) == count[:, None])
        bit = torch.where(last, tokens, 0).sum(1)
        long_enough = count >= 1 if self.working else count == 1
        return long_enough & (bit == self.odd(group))
