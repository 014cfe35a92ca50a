"""Tasks whose prompt is a string of digits and "=": numbered strings, perhaps of several lengths."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.environments.digit_strings import DigitStrings, longest
from testbed.environments.parameters import require_whole
from testbed.environments.verifiable import VerifiableTask


class StringTask(VerifiableTask):
    """Prompts "d_1 ... d_n=" with n in a range and digits of one base; tokens 0..base - 1 are the digits.

    Attributes
    ----------
    strings : DigitStrings    what stands in the prompts
    equals : int              token that closes a prompt
    """

    strings: DigitStrings
    equals: int

    def _take_strings(self, strings: DigitStrings, equals: int) -> None:
        self.strings, self.equals = strings, equals
        self.n_prompts, self.prompt_length = strings.count, strings.most + 1

    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of the strings, each closed by "=", `pad` behind the shorter ones."""
        length = self.prompt_lengths(group)[:, None] - 1
        digits = torch.nn.functional.pad(self.strings.digits(group), (0, 1))
        place = torch.arange(self.prompt_length)
        return torch.where(place < length, digits, torch.where(place == length, self.equals, self.pad))

    def prompt_lengths(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Tokens of each prompt: its digits and "="."""
        self.require_prompts(group)
        return self.strings.lengths(group) + 1


def length_range(name: str, most: int, least: int | None, base: int) -> tuple[int, int]:
    """Return the fewest and most digits of a prompt, checked; `least` None means that all have the same length.

    Raises
    ------
    InputError   naming `name` or `least_<name>`

    Examples
    --------
    >>> length_range("bits", 12, None, base=2), length_range("bits", 12, 3, base=2)
    ((12, 12), (3, 12))
    """
    most = require_whole(name, most, 1, longest(base))
    return most if least is None else require_whole(f"least_{name}", least, 1, most), most
