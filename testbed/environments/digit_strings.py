"""Numbered strings of digits of several lengths: all of a length if they are few, else a fixed, evenly spread choice."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.environments.numerals import digits_of
from testbed.environments.parameters import require_whole

GOLDEN = (math.sqrt(5) - 1) / 2
MOST_STRINGS, MOST_PER_LENGTH = 10**12, 10**6  # their product fits 64 bits


class DigitStrings:
    """Strings of `least` .. `most` digits in a base, at most `per_length` of each length.

        string i of length n spells   i                          if base^n <= per_length
                                      i * stride mod base^n      else, stride near golden * base^n and prime to the base

    Strings of one length are distinct; lengths come in increasing order.

    Parameters
    ----------
    base : int            2..10
    least, most : int     1 <= least <= most, base^most <= 10^12
    per_length : int      1..10^6

    Raises
    ------
    InputError   a size out of range

    Examples
    --------
    >>> strings = DigitStrings(2, least=1, most=3, per_length=4)
    >>> strings.count, strings.lengths(torch.tensor([0, 2, 9])).tolist()
    (10, [1, 2, 3])
    >>> strings.digits(torch.tensor([1, 5, 7])).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """

    def __init__(self, base: int, least: int, most: int, per_length: int) -> None:
        self.base, self.least, self.most = base, least, most
        require_whole("per_length", per_length, 1, MOST_PER_LENGTH)
        self.totals = [base**n for n in range(least, most + 1)]
        self.counts = [min(total, per_length) for total in self.totals]
        self.strides = [_stride(total, base) if total > per_length else 1 for total in self.totals]
        self.first = torch.tensor([0, *self.counts]).cumsum(0)
        self.count = int(self.first[-1])

    def lengths(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Length of each string."""
        return self.least + self._kind(group)

    def digits(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B N"]:
        """Digits of each string, packed from the left, zeros behind the shorter ones."""
        kind = self._kind(group)
        total, stride = torch.tensor(self.totals)[kind], torch.tensor(self.strides)[kind]
        value = (group - self.first[kind]) * stride % total
        return digits_of(value * self.base ** (self.most - self.least - kind), self.most, self.base)

    def _kind(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return torch.searchsorted(self.first, group, right=True) - 1


def longest(base: int) -> int:
    """Most digits of a string in a base.

    Examples
    --------
    >>> longest(10), longest(2)
    (12, 39)
    """
    return max(n for n in range(1, 64) if base**n <= MOST_STRINGS)


def _stride(total: int, base: int) -> int:
    stride = round(GOLDEN * total)
    while math.gcd(stride, base) > 1:
        stride += 1
    return stride
