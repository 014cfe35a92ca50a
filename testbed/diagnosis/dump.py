"""`load_dump`: a trainer's recorded log-probabilities as a SegmentedBatch.

The file holds, per token, where it stands, which segment drew it, and its log-probability in nats under the behavior
that drew it and under the target. What each column must satisfy is checked here, with the sequence and position of the
first offender as the file numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.diagnosis.adapters.registry import NATIVE, choose_format, read_trainer
from testbed.diagnosis.dump_checks import (
    appearance,
    as_numbers,
    check_constant,
    check_log_probs,
    check_positions,
    check_segments,
)
from testbed.diagnosis.layouts import flat_fields, missing_column
from testbed.diagnosis.tables import Table, read_table

OPTIONAL = {  # field -> the names its column may have; the first one found is read
    "sequence": ("sequence",),
    "position": ("position",),
    "token": ("token",),
    "segment": ("segment",),
    "group": ("group", "prompt"),
    "logp_proximal": ("logp_proximal",),
    "version": ("version",),
    "engine": ("engine", "behavior"),
    "token_reward": ("token_reward",),
    "action_value": ("action_value",),
}


@dataclass(frozen=True, slots=True)
class Dump:
    """A batch and how it was read: the format's name, field -> column, and what a reader of the diagnosis must know."""

    batch: SegmentedBatch
    format: str
    columns: dict[str, str]
    notes: list[str] = field(default_factory=list)


def load_dump(
    path: str | Path,
    target: str | None = None,
    behavior: str | None = None,
    *,
    format_name: str | None = None,
    strict: bool = False,
) -> SegmentedBatch:
    """Read a dump into a batch; responses keep the order in which the file first names them.

    Columns of the testbed's own format: `logp_behavior`, `logp_target` (nats) and `reward`; `sequence` and `position` (0,
    1, 2, ... in each response) unless each row is a whole response with lists in it. Read when present: `token`, `segment`
    (else all 0: one behavior), `group` or `prompt` (else every response for itself), `logp_proximal`, `version`, `engine`
    or `behavior`, `token_reward`, `action_value`. Dumps of verl, TRL, AReaL and OpenRLHF are recognized by their fields
    (see `adapters`).

    Parameters
    ----------
    path : str or Path             .parquet, .jsonl, .npz or .pt
    target, behavior : str         columns to read instead of the format's own
    format_name : str              testbed, verl, trl, areal or openrlhf; None = by the fields
    strict : bool                  refuse log-probs that have passed through a 16-bit format

    Returns
    -------
    SegmentedBatch                 [B, T] with T the longest response; floating dtypes as in the file

    Raises
    ------
    InputError   unreadable or empty file; fields of no format; one column for target and behavior; a missing column; text
                 where numbers belong; positions that are not 0, 1, 2, ... once each; NaN, positive or impossible
                 log-probs; a segment label that is negative or decreases; rewards or groups that differ inside one response
    Assumes      behavior log-probs were recorded by the sampler (temperature, top-p and noise included)
    Numerics     O(N log N) in the number of tokens, no Python loop over tokens

    Examples
    --------
    >>> from testbed.sample_data import partial_rollouts_path
    >>> batch = load_dump(partial_rollouts_path())
    >>> batch.batch_size, batch.n_tokens, batch.n_segments
    (128, 4224, 2)
    """
    return read_dump(path, target, behavior, format_name=format_name, strict=strict).batch


def read_dump(
    path: str | Path,
    target: str | None = None,
    behavior: str | None = None,
    *,
    format_name: str | None = None,
    strict: bool = False,
) -> Dump:
    """Read a dump as `load_dump` does, and say how.

    Examples
    --------
    >>> from testbed.sample_data import partial_rollouts_path
    >>> read_dump(partial_rollouts_path()).format
    'testbed'
    """
    table = read_table(path)
    chosen = choose_format(table.names, format_name, target, behavior)
    notes: list[str] = []
    if chosen == NATIVE:
        columns = _own_columns(table, target, behavior)
        raw = flat_fields(table, columns)
    else:
        trainer = read_trainer(chosen, table, target, behavior)
        raw, columns, notes = trainer.fields, trainer.columns, trainer.notes
        if len(raw["logp_behavior"]) == 0:
            raise InputError("a dump must hold at least one token", found="none")
    if columns["logp_target"] == columns["logp_behavior"]:
        raise InputError(
            "target and behavior must be two columns",
            found=f"`{columns['logp_target']}` for both",
            hint="choose another with --target or --behavior",
        )
    clean = {name: as_numbers(name, columns.get(name, name), values) for name, values in raw.items()}
    row = appearance(clean["sequence"])
    order = np.lexsort((clean["position"], row))
    row, clean = row[order], {name: values[order] for name, values in clean.items()}
    names = np.asarray(raw["sequence"])[order]
    check_positions(row, clean["position"], names)
    check_log_probs(clean, columns, names)
    check_segments(clean, names)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    for name in ("reward", "group"):
        if name in clean:
            check_constant(name, clean[name], row, first, names)
    return Dump(_batch(clean, row, first, strict), chosen, columns, notes)


def _own_columns(table: Table, target: str | None, behavior: str | None) -> dict[str, str]:
    columns = {"logp_target": target or "logp_target", "logp_behavior": behavior or "logp_behavior", "reward": "reward"}
    for name, column in columns.items():
        if column not in table.names:
            raise missing_column(name, column, table.names)
    for name, options in OPTIONAL.items():
        present = [column for column in options if column in table.names]
        if present:
            columns[name] = present[0]
    return columns


def _batch(clean: dict[str, np.ndarray], row: np.ndarray, first: np.ndarray, strict: bool) -> SegmentedBatch:
    """Pad to [B, T]."""
    position = clean["position"]
    shape = (len(first), int(position.max()) + 1)

    def padded(values: np.ndarray) -> torch.Tensor:
        out = np.zeros(shape, dtype=values.dtype)
        out[row, position] = values
        return torch.from_numpy(out)

    flat_zero = np.zeros(len(row), dtype=np.int64)
    optional: dict[str, Any] = {
        name: padded(clean[name])
        for name in ("logp_proximal", "version", "engine", "token_reward", "action_value")
        if name in clean
    }
    return SegmentedBatch(
        tokens=padded(clean.get("token", flat_zero)),
        mask=padded(np.ones(len(row), dtype=np.bool_)),
        segment=padded(clean.get("segment", flat_zero)),
        logp_target=padded(clean["logp_target"]),
        logp_behavior=padded(clean["logp_behavior"]),
        reward=torch.from_numpy(clean["reward"][first]),
        group=torch.from_numpy(clean["group"][first] if "group" in clean else np.arange(len(first))),
        strict=strict,
        **optional,
    )
