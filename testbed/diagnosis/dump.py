"""`load_dump`: a trainer's recorded log-probabilities as a SegmentedBatch.

The file holds, per token, where it stands, which segment drew it, and its log-probability in nats under the behavior
that drew it and under the target. What each column must satisfy is checked here, with the sequence and position of the
first offender as the file numbers them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.batch_checks import POSITIVE_TOLERANCE
from testbed.core.errors import InputError
from testbed.diagnosis.layouts import flat_fields, missing_column
from testbed.diagnosis.tables import read_table

REQUIRED = ("logp_behavior", "logp_target", "reward")
FLOATS = ("logp_behavior", "logp_target", "logp_proximal", "reward", "token_reward", "action_value")
NAMED = ("sequence", "group", "version", "engine")  # may be text: only equality matters
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


def load_dump(
    path: str | Path, target: str | None = None, behavior: str | None = None, *, strict: bool = False
) -> SegmentedBatch:
    """Read a dump into a batch; responses keep the order in which the file first names them.

    Columns: `logp_behavior`, `logp_target` (nats) and `reward`; `sequence` and `position` (0, 1, 2, ... in each
    response) unless each row is a whole response with lists in it. Read when present: `token`, `segment` (else all
    0: one behavior), `group` or `prompt` (else every response for itself), `logp_proximal`, `version`, `engine` or
    `behavior`, `token_reward`, `action_value`.

    Parameters
    ----------
    path : str or Path             .parquet, .jsonl or .npz
    target, behavior : str         columns to read instead of `logp_target` and `logp_behavior`
    strict : bool                  refuse log-probs that have passed through a 16-bit format

    Returns
    -------
    SegmentedBatch                 [B, T] with T the longest response; floating dtypes as in the file

    Raises
    ------
    InputError   unreadable or empty file; a missing column; text where numbers belong; positions that are not
                 0, 1, 2, ... once each; NaN, positive or impossible log-probs; a segment label that is negative or
                 decreases; rewards or groups that differ inside one response
    Assumes      behavior log-probs were recorded by the sampler (temperature, top-p and noise included)
    Numerics     O(N log N) in the number of tokens, no Python loop over tokens

    Examples
    --------
    >>> from testbed.sample_data import partial_rollouts_path
    >>> batch = load_dump(partial_rollouts_path())
    >>> batch.batch_size, batch.n_tokens, batch.n_segments
    (128, 4224, 2)
    """
    table = read_table(path)
    columns = {"logp_behavior": behavior or "logp_behavior", "logp_target": target or "logp_target", "reward": "reward"}
    for field, name in columns.items():
        if name not in table.names:
            raise missing_column(field, name, table.names)
    for field, names in OPTIONAL.items():
        present = [name for name in names if name in table.names]
        if present:
            columns[field] = present[0]
    raw = flat_fields(table, columns)
    clean = {field: _as_numbers(field, columns.get(field, field), values) for field, values in raw.items()}
    row = _appearance(clean["sequence"])
    order = np.lexsort((clean["position"], row))
    row, clean = row[order], {field: values[order] for field, values in clean.items()}
    names = np.asarray(raw["sequence"])[order]
    _check_positions(row, clean["position"], names)
    _check_log_probs(clean, columns, names)
    _check_segments(clean, names)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    for field in ("reward", "group"):
        if field in clean:
            _check_constant(field, clean[field], row, first, names)
    return _batch(clean, row, first, strict)


def _as_numbers(field: str, column: str, values: np.ndarray) -> np.ndarray:
    """Return a float array (in the file's precision), or an int64 one; names become their order of appearance."""
    kind = values.dtype.kind
    if field in FLOATS and kind in "fiub":
        return values if kind == "f" else values.astype(np.float64)
    if field not in FLOATS and kind in "iub":
        return values.astype(np.int64)
    if field in NAMED and kind == "O":
        return _appearance(values)
    wanted = "numbers" if field in FLOATS else "whole numbers or names" if field in NAMED else "whole numbers"
    bad = 0
    if kind == "f":  # whole numbers may arrive as floats, but then none is missing (NaN equals nothing)
        broken = values != np.round(values)
        if not broken.any():
            return values.astype(np.int64)
        bad = int(np.argmax(broken))
    found = repr(values[bad].item() if kind == "f" else values[bad]) if kind in "fO" else values.dtype
    raise InputError(f"column `{column}` must hold {wanted}", found=found)


def _appearance(identity: np.ndarray) -> np.ndarray:
    """Number identities 0, 1, 2, ... in the order of first appearance."""
    _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _check_positions(row: np.ndarray, position: np.ndarray, names: np.ndarray) -> None:
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    expected = np.arange(len(row)) - np.repeat(starts, np.diff(starts, append=len(row)))
    bad = np.flatnonzero(position != expected)
    if len(bad):
        i = int(bad[0])
        before = "at the start" if expected[i] == 0 else f"after {position[i - 1]}"
        raise InputError(
            "`position` must be 0, 1, 2, ... in every response, each once",
            found=f"{position[i]} {before} in sequence {names[i]}",
            hint="count the response's own tokens; none may be left out",
        )


def _check_log_probs(clean: dict[str, np.ndarray], columns: dict[str, str], names: np.ndarray) -> None:
    for field in (name for name in FLOATS if name in clean):
        values, column = clean[field], columns[field]
        _refuse(np.isnan(values), f"`{column}` must not be NaN", clean, names, values, "a missing value is not 0")
        if not field.startswith("logp"):
            _refuse(np.isinf(values), f"`{column}` must be finite", clean, names, values)
            continue
        hint = "did you pass a probability or a logit?"
        _refuse(values > POSITIVE_TOLERANCE, f"`{column}` must hold log-probabilities <= 0", clean, names, values, hint)
        if field == "logp_behavior":
            rule = f"`{column}` must be finite: the sampler cannot have drawn a token of probability 0"
            _refuse(np.isneginf(values), rule, clean, names, values)


def _check_segments(clean: dict[str, np.ndarray], names: np.ndarray) -> None:
    if "segment" not in clean:
        return
    label = clean["segment"]
    _refuse(label < 0, "`segment` must be >= 0", clean, names, label)
    drop = np.diff(label, prepend=0) < 0
    hint = "label segments in the order they were drawn"
    _refuse(drop & (clean["position"] > 0), "`segment` must not decrease along a response", clean, names, label, hint)


def _refuse(
    bad: np.ndarray, rule: str, clean: dict[str, np.ndarray], names: np.ndarray, values: np.ndarray, hint: str = ""
) -> None:
    if bad.any():
        i = int(np.argmax(bad))
        where = f"(sequence {names[i]}, position {clean['position'][i]})"
        raise InputError(rule, found=f"{int(bad.sum())} such, the first {values[i]:.6g} at {where}", hint=hint)


def _check_constant(field: str, values: np.ndarray, row: np.ndarray, first: np.ndarray, names: np.ndarray) -> None:
    bad = np.flatnonzero(values != values[first][row])
    if len(bad):
        i = int(bad[0])
        found = "two of them" if field == "group" else f"{values[first][row[i]]:.6g} and {values[i]:.6g}"
        raise InputError(
            f"`{field}` must be one value per response",
            found=f"{found} in sequence {names[i]}",
            hint="per-token rewards belong in `token_reward`" if field == "reward" else "",
        )


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
        field: padded(clean[field])
        for field in ("logp_proximal", "version", "engine", "token_reward", "action_value")
        if field in clean
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
