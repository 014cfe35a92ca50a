"""The claims of the papers' abstracts, in our words, with the theorems that decide them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

REPORTED = Path(__file__).parent / "reported"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Parameters
    ----------
    paper : str                  short name of the paper
    claim : str                  what is claimed, in our words
    printed : str                the number as printed, or ""
    theorems : tuple[str, ...]   ids of the theorems that decide it; empty where only a training run can
    note : str                   what is a reading, and what remains open
    """

    paper: str
    claim: str
    printed: str
    theorems: tuple[str, ...]
    note: str


def claims(path: Path | None = None) -> list[Claim]:
    """Read the claims in the order of the file.

    Examples
    --------
    >>> claims()[1].theorems
    ('S1', 'S2', 'S3', 'S4', 'S6', 'S8')
    """
    with (path or REPORTED / "claims.csv").open(newline="") as file:
        return [
            Claim(row["paper"], row["claim"], row["printed"], tuple(row["theorems"].split()), row["note"])
            for row in csv.DictReader(file)
        ]
