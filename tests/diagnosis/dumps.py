"""Small dumps with known content, in every format, and one mistake at a time."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def columns(rng, lengths=(3, 1, 4, 2), n_segments=2):
    """Long-format columns of responses with these lengths; every optional column is present."""
    total = sum(lengths)
    sequence = np.repeat(np.arange(len(lengths)) * 10 + 7, lengths)  # numbers that are no row numbers
    position = np.concatenate([np.arange(n) for n in lengths])
    segment = np.concatenate([np.sort(rng.integers(0, n_segments, n)) for n in lengths])
    return {
        "sequence": sequence,
        "prompt": np.repeat(np.arange(len(lengths)) // 2, lengths),
        "position": position,
        "token": rng.integers(0, 1000, total),
        "segment": segment,
        "version": segment + 40,
        "engine": segment * 3,
        "logp_behavior": -rng.exponential(1.0, total),
        "logp_target": -rng.exponential(1.0, total),
        "logp_proximal": -rng.exponential(1.0, total),
        "token_reward": rng.normal(size=total),
        "action_value": rng.normal(size=total),
        "reward": np.repeat(rng.normal(size=len(lengths)), lengths),
    }


def write(path, table):
    """Write columns in the format of the path's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: pa.array(values) for name, values in table.items()}), path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.asarray(values) for name, values in table.items()})
    else:
        rows = zip(*[np.asarray(values).tolist() for values in table.values()], strict=True)
        path.write_text("".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in rows))
    return path


def by_response(table):
    """The same dump with one row per response: lists per token, single values for what is constant in a response."""
    starts = np.flatnonzero(np.diff(table["sequence"], prepend=-1))
    single = ("sequence", "prompt", "reward")
    return {
        name: values[starts] if name in single else [part.tolist() for part in np.split(values, starts[1:])]
        for name, values in table.items()
        if name != "position"
    }
