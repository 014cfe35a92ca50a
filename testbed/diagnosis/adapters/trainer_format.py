"""What an adapter says about its trainer, and the flat fields it makes of a trainer's padded arrays.

A trainer keeps rectangular arrays and a mask; a row may also be a list per response, padded or not. An adapter names the
mask, and for every other field its column and how that column's places belong to the mask's places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from testbed.core.errors import InputError
from testbed.diagnosis.tables import Table

Flat = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFormat:
    """A trainer's dump: the fields it is recognized by, and where that is documented.

    needs    groups of names; one of each group must be there
    reads    what else is read where present
    source   repository, version or commit, and file that the names and alignments were checked against
    """

    name: str
    needs: tuple[tuple[str, ...], ...]
    reads: tuple[str, ...]
    source: str

    def missing(self, names: list[str], instead: tuple[str, ...] = ()) -> list[str]:
        """Return what is needed and not there; `instead` are needs met by a column the user chose."""
        lacking = [options for options in self.needs if not set(options) & {*names, *instead}]
        return [" or ".join(f"`{name}`" for name in options) for options in lacking]


@dataclass(frozen=True, slots=True)
class Trainer:
    """Flat fields of one dump: field -> one entry per token, the names of their columns, and what a reader must know."""

    fields: Flat
    columns: dict[str, str]
    notes: list[str] = field(default_factory=list)


class Masked:
    """The places a mask selects, and every other column at these places.

    Examples
    --------
    >>> from testbed.diagnosis.tables import Column
    >>> columns = {"m": Column(np.array([0, 1, 1, 1, 0, 0]), np.array([3, 3])), "x": Column(np.arange(8), np.array([4, 4]))}
    >>> at = Masked(Table(["m", "x"], columns.__getitem__), "m")
    >>> at.row.tolist(), at.position.tolist(), at.tokens("x", align="end").tolist()
    ([0, 0, 1], [0, 1, 0], [2, 3, 5])
    """

    def __init__(self, table: Table, mask: str, *, also: tuple[str, ...] = ()) -> None:
        self.table, self.mask_name = table, mask
        selected, self.lengths = self._per_token(mask)
        chosen = selected != 0
        for name in also:
            more, lengths = self._per_token(name)
            self._same_lengths(name, lengths)
            chosen = chosen & (more != 0)
        starts = np.cumsum(self.lengths) - self.lengths
        self.rows = len(self.lengths)
        place = np.flatnonzero(chosen)
        self.row = np.repeat(np.arange(self.rows), self.lengths)[place]
        self.place = place - starts[self.row]
        count = np.bincount(self.row, minlength=self.rows)
        self.position = np.arange(len(place)) - (np.cumsum(count) - count)[self.row]
        self.first = np.full(self.rows, -1)  # place of each row's first selected token; -1: none
        opening = self.position == 0
        self.first[self.row[opening]] = self.place[opening]

    def tokens(self, name: str, *, align: str = "start", shift: int = 0) -> np.ndarray:
        """Entries of a per-token column at the selected places.

        Parameters
        ----------
        align : str   "start": places are the mask's; "end": the column is longer, and its last places are the mask's
        shift : int   read this many places further on

        Raises
        ------
        InputError   no list per row; a row too short; a column of another length where places are the mask's
        """
        values, lengths = self._per_token(name)
        if align == "start" and shift == 0:
            self._same_lengths(name, lengths)
        before = (lengths - self.lengths if align == "end" else 0 * lengths)[self.row]
        within = self.place + before + shift
        outside = (within < 0) | (within >= lengths[self.row])
        if outside.any():
            row = int(self.row[np.argmax(outside)])
            raise InputError(
                f"`{name}` must have an entry for every token of `{self.mask_name}`",
                found=f"{lengths[row]} entries for a mask of {self.lengths[row]}, row {row}",
            )
        return values[(np.cumsum(lengths) - lengths)[self.row] + within]

    def each(self, name: str) -> np.ndarray:
        """Entries of a column with one value per row, repeated for the row's tokens; a list must hold one value only."""
        column = self.table.column(name)
        if column.lengths is not None and not (column.lengths == 1).all():
            raise InputError(f"`{name}` must hold one value per response", found="a list")
        if len(column.values) != self.rows:
            raise InputError(
                f"`{name}` must have one entry per row of `{self.mask_name}`",
                found=f"{len(column.values)} for {self.rows} rows",
            )
        return column.values[self.row]

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum over each row's selected tokens, repeated for the row's tokens."""
        return np.bincount(self.row, weights=values.astype(np.float64), minlength=self.rows)[self.row]

    def opening(self, values: np.ndarray) -> np.ndarray:
        """Entry of each row's first selected token, repeated for the row's tokens."""
        first = np.zeros(self.rows, dtype=values.dtype)
        first[self.row[self.position == 0]] = values[self.position == 0]
        return first[self.row]

    def prompts(self, name: str, before: Callable[[int], int | None]) -> np.ndarray:
        """Number rows by the content of a column up to `before(row)`: rows with equal prompts share a number."""
        values, lengths = self._per_token(name)
        starts = np.cumsum(lengths) - lengths
        seen: dict[bytes, int] = {}
        numbers = np.empty(self.rows, dtype=np.int64)
        for row in range(self.rows):
            end = before(row)
            part = values[starts[row] : starts[row] + (lengths[row] if end is None else min(end, lengths[row]))]
            numbers[row] = seen.setdefault(np.ascontiguousarray(part).tobytes(), len(seen))
        return numbers[self.row]

    def is_per_token(self, name: str) -> bool:
        """Whether the column holds a list per row with places for the mask's."""
        lengths = self.table.column(name).lengths
        return lengths is not None and bool((lengths == self.lengths).all()) and bool((lengths > 1).any())

    def _per_token(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        column = self.table.column(name)
        if column.lengths is None:
            raise InputError(f"`{name}` must hold a list per response", found="one value per row")
        return column.values, column.lengths

    def _same_lengths(self, name: str, lengths: np.ndarray) -> None:
        if len(lengths) != len(self.lengths):
            found = f"{len(lengths)} rows and {len(self.lengths)}"
            raise InputError(f"`{name}` and `{self.mask_name}` must have the same rows", found=found)
        differ = np.flatnonzero(lengths != self.lengths)
        if len(differ):
            row = int(differ[0])
            raise InputError(
                f"`{name}` must have an entry for every token of `{self.mask_name}`",
                found=f"{lengths[row]} entries for a mask of {self.lengths[row]}, row {row}",
            )


def three_policies(behavior: str, trainer: str, target: str | None, chosen_behavior: str | None) -> dict[str, str]:
    """Which column plays which part: the trainer's own is the target, or the proximal policy where a target is chosen.

    Examples
    --------
    >>> three_policies("rollout", "old", None, None)
    {'logp_behavior': 'rollout', 'logp_target': 'old'}
    >>> three_policies("rollout", "old", "new", None)["logp_proximal"]
    'old'
    """
    parts = {"logp_behavior": chosen_behavior or behavior, "logp_target": target or trainer}
    return parts if target in (None, trainer) else {**parts, "logp_proximal": trainer}
