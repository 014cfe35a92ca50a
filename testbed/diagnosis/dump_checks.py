"""What every column of a dump must satisfy, with the sequence and position of the first offender as the file numbers them."""

from __future__ import annotations

import numpy as np

from testbed.core.batch_checks import POSITIVE_TOLERANCE
from testbed.core.errors import InputError

FLOATS = ("logp_behavior", "logp_target", "logp_proximal", "reward", "token_reward", "action_value")
NAMED = ("sequence", "group", "version", "engine")  # may be text: only equality matters


def as_numbers(field: str, column: str, values: np.ndarray) -> np.ndarray:
    """Return a float array (in the file's precision), or an int64 one; names become their order of appearance."""
    kind = values.dtype.kind
    if field in FLOATS and kind in "fiub":
        return values if kind == "f" else values.astype(np.float64)
    if field not in FLOATS and kind in "iub":
        return values.astype(np.int64)
    if field in NAMED and kind == "O":
        return appearance(values)
    wanted = "numbers" if field in FLOATS else "whole numbers or names" if field in NAMED else "whole numbers"
    bad = 0
    if kind == "f":  # whole numbers may arrive as floats, but then none is missing (NaN equals nothing)
        broken = values != np.round(values)
        if not broken.any():
            return values.astype(np.int64)
        bad = int(np.argmax(broken))
    found = repr(values[bad].item() if kind == "f" else values[bad]) if kind in "fO" else values.dtype
    raise InputError(f"column `{column}` must hold {wanted}", found=found)


def appearance(identity: np.ndarray) -> np.ndarray:
    """Number identities 0, 1, 2, ... in the order of first appearance."""
    _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def check_positions(row: np.ndarray, position: np.ndarray, names: np.ndarray) -> None:
    """Refuse positions that are not 0, 1, 2, ... once each in every response."""
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


def check_log_probs(clean: dict[str, np.ndarray], columns: dict[str, str], names: np.ndarray) -> None:
    """Refuse NaN, positive log-probs, infinite rewards, and a behavior log-prob of -inf."""
    for field in (name for name in FLOATS if name in clean):
        values, column = clean[field], columns[field]
        missing = np.isnan(values)
        if field == "reward":  # one value per response, repeated for its tokens: count it once
            missing &= ~(np.r_[False, missing[:-1]] & (clean["position"] > 0))
        _refuse(missing, f"`{column}` must not be NaN", clean, names, values, "a missing value is not 0")
        if not field.startswith("logp"):
            _refuse(np.isinf(values), f"`{column}` must be finite", clean, names, values)
            continue
        hint = "did you pass a probability or a logit?"
        _refuse(values > POSITIVE_TOLERANCE, f"`{column}` must hold log-probabilities <= 0", clean, names, values, hint)
        if field == "logp_behavior":
            rule = f"`{column}` must be finite: the sampler cannot have drawn a token of probability 0"
            _refuse(np.isneginf(values), rule, clean, names, values)


def check_segments(clean: dict[str, np.ndarray], names: np.ndarray) -> None:
    """Refuse labels that are negative or decrease along a response."""
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


def check_constant(field: str, values: np.ndarray, row: np.ndarray, first: np.ndarray, names: np.ndarray) -> None:
    """Refuse a quantity of the response that differs between its tokens."""
    bad = np.flatnonzero(values != values[first][row])
    if len(bad):
        i = int(bad[0])
        found = "two of them" if field == "group" else f"{values[first][row[i]]:.6g} and {values[i]:.6g}"
        raise InputError(
            f"`{field}` must be one value per response",
            found=f"{found} in sequence {names[i]}",
            hint="per-token rewards belong in `token_reward`" if field == "reward" else "",
        )
