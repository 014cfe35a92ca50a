"""What the training studies say of each claim of the papers: one committed file, made from records, and README.md's table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paper_repro.lab_tables import WORDS
from paper_repro.studies import STUDIES
from testbed.core.errors import InputError
from testbed.core.records import RunRecord, require_writable

FILE = Path(__file__).parent / "results" / "training_claims.csv"


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, judged.

    Parameters
    ----------
    table : str      that judges it, a key of STUDIES
    claim : str      in our words
    verdict : str    reproduced, within noise or not reproduced
    found : str      the numbers behind the verdict
    """

    table: str
    claim: str
    verdict: str
    found: str


def judged_by(records: Path) -> list[Judged]:
    """Read the claims of every record of tables at tiny scale, in the order of STUDIES.

    Parameters
    ----------
    records : Path    folder of NAME_tiny.json

    Raises
    ------
    InputError   no record with claims, a record of a smoke run
    """
    found: list[Judged] = []
    for name in STUDIES:
        path = records / f"{name}_tiny.json"
        if path.is_file():
            found += _claims_of(name, RunRecord.load(path).result, path)
    if not found:
        hint = "`python -m paper_repro run all --scale tiny` makes them"
        raise InputError("claims need records of tables", found=f"none with claims in {records}", hint=hint)
    return found


def _claims_of(name: str, result: dict[str, Any], path: Path) -> list[Judged]:
    rows = result.get("claims", [])
    if rows and result["smoke"]:
        raise InputError("claims need records of full runs", found=f"a smoke run in {path}")
    return [Judged(name, row["claim"], row["verdict"], row["found"]) for row in rows]


def write_claims(found: Sequence[Judged], path: Path = FILE) -> Path:
    """Write the file that README.md's part is made from."""
    names = [field.name for field in fields(Judged)]
    with require_writable(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(one, name) for name in names] for one in found)
    return path


def read_claims(path: Path = FILE) -> list[Judged]:
    """Read the file; nothing if it has not been made.

    Raises
    ------
    InputError   a table or a word that does not exist
    """
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        found = [Judged(**row) for row in csv.DictReader(file)]
    for one in found:
        if one.table not in STUDIES or one.verdict not in WORDS:
            raise InputError(
                "a judged claim needs a table and a verdict that exist", found=f"{one.table}: {one.verdict}"
            )
    return found


def claims_block(found: Sequence[Judged]) -> str:
    """Return counts by table, and every claim in a part that folds, as Markdown.

    Examples
    --------
    >>> print(claims_block([Judged("cis_table2", "CIS ends above TIS", "within noise", "+0.01")]).splitlines()[2])
    | cis_table2 | controls of CIS: constant caps, a bound from below, floors | 0 | 1 | 0 |
    """
    if not found:
        return "The training studies have not been judged yet."
    words = WORDS[::-1]  # the best first
    lines = ["| table | what it shows | " + " | ".join(words) + " |", "|---" * (2 + len(words)) + "|"]
    for table in dict.fromkeys(one.table for one in found):
        counts = Counter(one.verdict for one in found if one.table == table)
        lines.append(f"| {table} | {STUDIES[table].title} | " + " | ".join(str(counts[word]) for word in words) + " |")
    rows = ["| table | claim | verdict | found |", "|---|---|---|---|"]
    rows += [
        "| " + " | ".join(getattr(one, field.name).replace("|", "\\|") for field in fields(Judged)) + " |"
        for one in found
    ]
    fold = ["<details>", "<summary>Every claim, with its numbers</summary>", "", *rows, "", "</details>"]
    return "\n".join([*lines, "", *fold])
