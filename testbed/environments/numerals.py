"""Digits and the numbers they spell, for whole batches at once: written with a fixed width, read from any positions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.core.errors import InputError

LARGEST = 2**63 - 1  # what fits 64 bits; stands for everything above as well


def digits_of(number: Int64[Tensor, " B"], width: int, base: int = 10) -> Int64[Tensor, "B W"]:
    """Return the last `width` digits of each number, the highest first.

    Examples
    --------
    >>> digits_of(torch.tensor([7, 42]), 3).tolist()
    [[0, 0, 7], [0, 4, 2]]
    """
    return number[:, None] // base ** torch.arange(width - 1, -1, -1) % base


def digit_count(number: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Number of decimal digits of each number >= 0, without leading zeros; 0 has one.

    Examples
    --------
    >>> digit_count(torch.tensor([0, 9, 10, 10**17])).tolist()
    [1, 1, 2, 18]
    """
    return 1 + (number[:, None] >= 10 ** torch.arange(1, 19)).sum(1)


def number_at(
    tokens: Int64[Tensor, "B T"], where: Bool[Tensor, "B T"], units_first: bool = False
) -> tuple[Int64[Tensor, " B"], Bool[Tensor, " B"]]:
    """Read the number that the tokens at the chosen positions spell, and whether they spell one.

    Parameters
    ----------
    tokens : Int64[Tensor, "B T"]   0..9 are digits
    where : Bool[Tensor, "B T"]     positions to read
    units_first : bool              the lowest digit stands first

    Returns
    -------
    number : Int64[Tensor, " B"]    zeros at the high end count for nothing; 2^63 - 1 stands for that and all larger numbers
    spelled : Bool[Tensor, " B"]    at least one position, and digits only

    Examples
    --------
    >>> tokens, where = torch.tensor([[4, 2, 11]]), torch.tensor([[True, True, False]])
    >>> [int(number_at(tokens, where, order)[0]) for order in (False, True)], bool(number_at(tokens, where)[1])
    ([42, 24], True)
    """
    number = torch.zeros_like(tokens[:, :1]).sum(1)
    places = range(tokens.shape[1])
    for t in reversed(places) if units_first else places:
        fits = number <= (LARGEST - 9) // 10
        longer = torch.where(fits, number * 10 + tokens[:, t].clamp(0, 9), LARGEST)
        number = torch.where(where[:, t], longer, number)
    return number, where.any(1) & ~(where & ((tokens > 9) | (tokens < 0))).any(1)


def written(
    number: Int64[Tensor, " B"], room: int, end: int, units_first: bool = False
) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Write each number without leading zeros, then the end token, in rows of `room` tokens; and the mask of what is written.

    Raises
    ------
    InputError   if the room does not hold the longest number and the end token

    Examples
    --------
    >>> tokens, mask = written(torch.tensor([7, 42]), room=4, end=10)
    >>> tokens.tolist(), mask.sum(1).tolist()
    ([[7, 10, 0, 0], [4, 2, 10, 0]], [2, 3])
    """
    length = digit_count(number)
    if length.numel() and int(length.max()) >= room:
        raise InputError("the horizon must hold the number's digits and the end token", found=f"room for {room}")
    place = torch.arange(room).expand(len(number), -1)
    shift = (place if units_first else length[:, None] - 1 - place).clamp(0, 18)
    mask = place <= length[:, None]
    digit = number[:, None] // 10**shift % 10
    return torch.where(mask, torch.where(place == length[:, None], end, digit), 0), mask
