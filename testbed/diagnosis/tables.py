"""Reading a file of recorded log-probabilities into named columns, whatever the format, without judging what they mean.

A column has one entry per row of the file, or, where a row holds a list, one entry per list element and the lengths of
the lists. Every way a file can be unreadable ends in one sentence.
"""

from __future__ import annotations

import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError

READERS = {
    ".parquet": "read_parquet",
    ".jsonl": "read_jsonl",
    ".npz": "read_npz",
    ".pt": "read_pt",
    ".pth": "read_pt",
}
SUFFIXES = "a .parquet, .jsonl or .npz file, or .pt with plain tensors"


class Column(NamedTuple):
    """Entries in file order; `lengths` is None unless every row holds a list, whose elements are then strung together.

    `values` is numeric, boolean, or of dtype object with text in it; a missing number is NaN. `layout` says that rows came
    as a rectangular array, whose width says nothing about the length of a response.
    """

    values: np.ndarray
    lengths: np.ndarray | None = None
    layout: str | None = None


class Table(NamedTuple):
    """The names of a file's columns, and a function that reads one of them."""

    names: list[str]
    column: Callable[[str], Column]


def read_table(path: str | Path) -> Table:
    """Open a parquet, JSONL, npz or pt file.

    Raises
    ------
    InputError   no such file, an empty one, another format, or one that cannot be parsed
    """
    file = Path(path)
    if not file.is_file():
        found = "a folder" if file.is_dir() else "no such file"
        raise InputError(f"the dump '{file}' must be a file", found=found, hint=SUFFIXES)
    if file.suffix.lower() not in READERS:
        raise InputError(f"a dump must be {SUFFIXES}", found=f"'{file.name}'", hint="rename or convert it")
    if file.stat().st_size == 0:
        raise InputError(
            f"the dump '{file.name}' must not be empty", found="0 bytes", hint="was it written completely?"
        )
    return globals()[READERS[file.suffix.lower()]](file)


def read_parquet(file: Path) -> Table:
    """Read a parquet file column by column, so that wide dumps cost only what is asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def broken(error: Exception) -> InputError:
        return InputError(
            f"'{file.name}' must be a readable parquet file",
            found=_first_line(error),
            hint="is it cut short or corrupt?",
        )

    def column(name: str) -> Column:
        try:
            entries = pq.read_table(file, columns=[name]).column(0).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            raise broken(error) from error
        return _from_arrow(name, entries)

    try:
        return Table(list(pq.read_schema(file).names), column)
    except (pa.ArrowException, OSError) as error:
        raise broken(error) from error


def _from_arrow(name: str, entries: Any) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = None
    if pa.types.is_nested(entries.type) and hasattr(entries, "flatten") and hasattr(entries.type, "value_type"):
        _refuse_gaps(name, entries)
        lengths = np.asarray(pc.call_function("list_value_length", [entries]), dtype=np.int64)
        entries = entries.flatten()
    if pa.types.is_dictionary(entries.type):
        entries = entries.dictionary_decode()
    kind = entries.type
    if pa.types.is_floating(kind):
        return Column(entries.to_numpy(zero_copy_only=False), lengths)
    _refuse_gaps(name, entries)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if text or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return Column(entries.to_numpy(zero_copy_only=False), lengths)
    raise InputError(f"column `{name}` must hold numbers or text", found=f"the type {kind}")


def _refuse_gaps(name: str, entries: Any) -> None:
    if entries.null_count:
        first = int(np.flatnonzero(np.asarray(entries.is_null()))[0])
        raise InputError(f"column `{name}` must have no nulls", found=f"{entries.null_count}, the first in row {first}")


def read_jsonl(file: Path) -> Table:
    """Read one JSON object per line; NaN and Infinity may be written bare, and null is a missing number."""
    rows: list[dict[str, Any]] = []
    number = 0
    try:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise InputError(f"every line of '{file.name}' must be a JSON object", found=f"line {number}")
                rows.append(row)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"every line of '{file.name}' must be a JSON object",
            found=f"line {number}: {getattr(error, 'msg', 'lists within lists, too deep to read')}",
            hint="is it cut short or corrupt?",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"'{file.name}' must be text in UTF-8", found=_first_line(error)) from error
    names = list(dict.fromkeys(name for row in rows for name in row))

    def column(name: str) -> Column:
        missing = next((number for number, row in enumerate(rows) if name not in row), None)
        if missing is not None:
            raise InputError(f"every row must have `{name}`", found=f"row {missing} of '{file.name}' without it")
        entries = [row[name] for row in rows]
        if not any(isinstance(entry, list) for entry in entries):
            return Column(_from_values(name, entries))
        if not all(isinstance(entry, list) for entry in entries):
            raise InputError(f"column `{name}` must hold lists in every row or in none", found="both")
        flat = [value for entry in entries for value in entry]
        return Column(_from_values(name, flat), np.array([len(entry) for entry in entries], dtype=np.int64))

    return Table(names, column)


def _from_values(name: str, values: list[Any]) -> np.ndarray:
    kinds = {type(value) for value in values}
    if kinds <= {int, float, bool, type(None)}:
        plain = kinds <= {int} or kinds <= {bool}
        return np.array(values) if plain else np.array(values, dtype=np.float64)
    if kinds == {str}:
        return np.array(values, dtype=object)
    found = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise InputError(f"column `{name}` must hold numbers or text", found=found)


def read_npz(file: Path) -> Table:
    """Read named arrays of one or two dimensions; pickled objects are refused."""
    failures = (zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, ValueError, OSError, EOFError)

    def broken(error: Exception) -> InputError:
        return InputError(
            f"'{file.name}' must be a readable npz file", found=_first_line(error), hint="is it cut short or corrupt?"
        )

    def read(name: str | None) -> Any:
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
                return list(arrays.files) if name is None else arrays[name]
        except failures as error:
            if name is not None and "allow_pickle" in str(error):
                raise InputError(
                    f"array `{name}` of '{file.name}' must hold numbers or text",
                    found="Python objects",
                    hint=f"text: save {name} as str (np.array({name}, dtype=str)); numbers: pad lists to one array [B, T]",
                ) from error
            raise broken(error) from error

    with file.open("rb") as opened:
        if opened.read(2) != b"PK":
            raise InputError(
                f"'{file.name}' must be a readable npz file", found="another format", hint="save it with numpy.savez"
            )
    names = read(None)

    def column(name: str) -> Column:
        values = read(name)
        if values.ndim not in (1, 2):
            raise InputError(f"array `{name}` must have one or two dimensions", found=f"shape {values.shape}")
        flat = values.reshape(-1).astype(object) if values.dtype.kind == "U" else values.reshape(-1)
        if values.ndim == 1:
            return Column(flat)
        return Column(flat, np.full(len(values), values.shape[1], dtype=np.int64), f"shape {values.shape}")

    return Table(names, column)


def read_pt(file: Path) -> Table:
    """Read what `torch.save` wrote; see `tensor_files`."""
    from testbed.diagnosis.tensor_files import read_tensors

    return read_tensors(file)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")[:160]
