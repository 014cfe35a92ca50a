"""Layouts of a dump: how the rows of a file map to tokens. Each turns a table into one flat array per field.

    token_rows      one row per token: `sequence` and `position` say where it stands
    response_rows   one row per response: per-token columns hold lists, the others one value for the whole response

The formats of trainers, with their padded arrays and masks, are in `adapters`.
"""

from __future__ import annotations

import numpy as np

from testbed.core.errors import InputError
from testbed.diagnosis.tables import Column, Table

NEEDS_REWARDS = (
    "rewards make the advantages of the clip-type rules and of the advised replay share; with zeros the other sections are "
    "still right"
)
LAYOUTS = {"token_rows": "from_token_rows", "response_rows": "from_response_rows"}


def flat_fields(table: Table, columns: dict[str, str]) -> dict[str, np.ndarray]:
    """Return field -> one entry per token, with `sequence` and `position` among the fields.

    Parameters
    ----------
    table : Table
    columns : dict       field -> name of its column; only columns the table has

    Raises
    ------
    InputError   columns of different lengths; no row
    """
    read = {field: table.column(name) for field, name in columns.items()}
    for field, column in read.items():
        if column.layout is not None:
            raise InputError(
                f"array `{columns[field]}` must be one-dimensional", found=column.layout, hint="one entry per token"
            )
    layout = "token_rows" if read["logp_behavior"].lengths is None else "response_rows"
    fields = globals()[LAYOUTS[layout]](read, columns, table.names)
    if len(fields["logp_behavior"]) == 0:
        raise InputError("a dump must hold at least one token", found="none")
    return fields


def from_token_rows(read: dict[str, Column], columns: dict[str, str], names: list[str]) -> dict[str, np.ndarray]:
    """One row per token."""
    for field in ("sequence", "position"):
        if field not in read:
            raise missing_column(field, field, names)
    size = len(read["logp_behavior"].values)
    for field, column in read.items():
        if column.lengths is not None:
            raise InputError(
                f"column `{columns[field]}` must hold one value per row", found="lists in some columns only"
            )
        if len(column.values) != size:
            raise InputError(
                "all columns must have one length",
                found=f"{len(column.values)} in `{columns[field]}`, {size} log-probs",
            )
    return {field: column.values for field, column in read.items()}


def from_response_rows(read: dict[str, Column], columns: dict[str, str], names: list[str]) -> dict[str, np.ndarray]:
    """One row per response, its tokens in lists. A response without tokens says nothing and is left out."""
    lengths = read["logp_behavior"].lengths
    assert lengths is not None
    fields = {}
    for field, column in read.items():
        if column.lengths is None:
            fields[field] = np.repeat(column.values, lengths)
            continue
        differ = np.flatnonzero(column.lengths != lengths)
        if len(differ):
            row = int(differ[0])
            raise InputError(
                "the lists of one response must have one length",
                found=f"{column.lengths[row]} in `{columns[field]}` and {lengths[row]} in `{columns['logp_behavior']}`, "
                f"row {row}",
            )
        fields[field] = column.values
    starts = np.cumsum(lengths) - lengths
    fields.setdefault("sequence", np.repeat(np.arange(len(lengths)), lengths))
    fields.setdefault("position", np.arange(lengths.sum()) - np.repeat(starts, lengths))
    return fields


def missing_column(field: str, name: str, names: list[str]) -> InputError:
    """Return the error that names a missing column and those the file has."""
    options = {"logp_target": " (choose with --target)", "logp_behavior": " (choose with --behavior)"}
    return InputError(
        f"a dump needs a column `{name}`{options.get(field, '')}",
        found="the columns " + ", ".join(names) or "none",
        hint=NEEDS_REWARDS if field == "reward" else "",
    )
