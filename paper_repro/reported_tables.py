"""The numbers the CIS paper prints, table by table, as far as the text we had shows them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from testbed.core.errors import InputError

REPORTED = Path(__file__).parent / "reported"
TABLES = tuple(range(1, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One cell of a printed table.

    Parameters
    ----------
    section : str          which model, where a table has several; else ""
    row, column : str      labels of the cell
    mean : float | None    the number; None where the cell is text, a dash or missing
    sd : float | None      the number after the plus-minus sign, over three seeds
    unit : str             "%" where the paper counts in percent, else ""
    printed : str          the cell as printed, LaTeX removed
    status : str           "printed", "none" (a dash) or "missing" (the text we had does not show it)
    """

    section: str
    row: str
    column: str
    mean: float | None
    sd: float | None
    unit: str
    printed: str
    status: str

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit: how far the paper's own number may be from what is printed.

        Examples
        --------
        >>> reported(6)["sd(epsilon)", "Dense"].rounding, reported(7)["p<0.5", "MAD(log k)"].rounding
        (5e-05, 0.0005)
        """
        if self.mean is None:
            raise InputError("a rounding needs a printed number", found=repr(self.printed))
        digits, _, power = self.printed.split(" ")[0].rstrip("%").partition("e")
        decimals = len(digits.partition(".")[2])
        return float(f"0.5e{int(power or 0) - decimals}")


class Table(dict[tuple[str, str], Reported]):
    """Cells by (row, column), or by (section + ": " + row, column) where a table has sections."""

    def rows(self) -> list[str]:
        """Row labels in the order of the paper."""
        return list(dict.fromkeys(row for row, _ in self))

    def columns(self) -> list[str]:
        """Column labels in the order of the paper."""
        return list(dict.fromkeys(column for _, column in self))

    def value(self, row: str, column: str) -> float:
        """Return a printed number.

        Raises
        ------
        InputError   no such cell, or it holds no number
        """
        cell = self.get((row, column))
        if cell is None or cell.mean is None:
            raise InputError(
                "the cell must hold a printed number", found=f"{row!r}, {column!r}: {cell and cell.status}"
            )
        return cell.mean


def reported(number: int) -> Table:
    """Read one table of the CIS paper.

    Parameters
    ----------
    number : int    1 to 14

    Raises
    ------
    InputError   no such table

    Examples
    --------
    >>> reported(6).value("sd(epsilon)", "Dense"), reported(1)["Qwen1.5-MoE-A2.7B: CIS", "Avg"].status
    (0.0997, 'missing')
    """
    if number not in TABLES:
        raise InputError(f"CIS has tables {TABLES[0]} to {TABLES[-1]}", found=number)
    with (REPORTED / f"cis_table{number:02d}.csv").open(newline="") as file:
        cells = [
            Reported(
                section=line["section"],
                row=line["row"],
                column=line["column"],
                mean=float(line["mean"]) if line["mean"] else None,
                sd=float(line["sd"]) if line["sd"] else None,
                unit=line["unit"],
                printed=line["printed"],
                status=line["status"],
            )
            for line in csv.DictReader(file)
        ]
    table = Table()
    for cell in cells:
        table[f"{cell.section}: {cell.row}" if cell.section else cell.row, cell.column] = cell
    return table
