"""The results of a study in one small file: a row per run, with its levels, its judgment, and its curves thinned."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.records import RunRecord, require_writable
from testbed.training.study import Cell, Study

SCALARS = ("outcome", "reason", "updates", "start", "best", "final", "area", "collapsed")
NEEDED = (*SCALARS, "evaluations", "curve")  # of a result that is to be a row
POINTS = 15  # means of each curve that are kept
SPIKY = ("grad_norm", "max_log_k")  # curves of which a mean says little


def thinned(values: list[Any], planned: int, points: int = POINTS) -> list[float]:
    """Means of a curve over equal stretches of its planned length; a run that ended early has fewer.

    Values that are not numbers, as records write NaN and infinities, are left out of their stretch.

    Examples
    --------
    >>> thinned([1, 2, 3, 4], planned=8, points=4)
    [1.5, 3.5]
    """
    width = max(1, -(-planned // points))
    out = []
    for start in range(0, len(values), width):
        numbers = [float(v) for v in values[start : start + width] if isinstance(v, int | float)]
        out.append(statistics.fmean(numbers) if numbers else float("nan"))
    return out


def spikes(values: list[Any]) -> tuple[float, float]:
    """Largest value of a curve, and the median of its last third; NaN is left out, infinities count.

    Examples
    --------
    >>> spikes([1.0, 9.0, 2.0, "inf", 3.0, 5.0, 4.0]), spikes([])
    ((inf, 4.0), (nan, nan))
    """
    numbers = [float(v) for v in values]
    late = [v for v in numbers[-math.ceil(len(numbers) / 3) :] if v == v]
    return max((v for v in numbers if v == v), default=math.nan), statistics.median(late) if late else math.nan


def row_of(cell: Cell, record: RunRecord) -> dict[str, Any]:
    """One run as a row.

    `ages` keeps the whole run's histogram of staleness, `curve_NAME` the stretches' means, `peak_NAME` and `late_NAME` what
    `spikes` says of the whole curve.
    """
    result = record.result
    row: dict[str, Any] = {f"factor_{name}": level for name, level in cell.levels.items()}
    row |= {"seed": cell.seed, "seconds": record.provenance.get("seconds")}
    row |= {name: result[name] for name in SCALARS}
    row |= {
        name: float(result[name]) for name in SCALARS if name in ("start", "best", "final", "area")
    }  # "nan" is a number
    row["evaluations"] = [float(reward) for _, reward in result["evaluations"]]
    for name, values in result["curve"].items():
        if name == "ages":
            row["ages"] = [sum(column) for column in zip(*values, strict=True)] if values else []
        else:
            row[f"curve_{name}"] = thinned(values, cell.config.updates)
        if name in SPIKY:
            row[f"peak_{name}"], row[f"late_{name}"] = spikes(values)
    return row


def commits_of(found: Iterable[RunRecord]) -> list[str]:
    """Name the commits that made records, sorted; one with changes that were not committed ends in "+".

    Examples
    --------
    >>> made = [{"git": "b1", "dirty": True}, {"git": "a0", "dirty": False}, {"git": "a0", "dirty": False}, {}]
    >>> commits_of(RunRecord(result={}, provenance=provenance) for provenance in made)
    ['a0', 'b1+', 'unknown']
    """
    made = (record.provenance for record in found)
    return sorted({f"{about.get('git') or 'unknown'}{'+' if about.get('dirty') else ''}" for about in made})


def write_results(study: Study, found: Iterator[tuple[Cell, RunRecord]], path: Path) -> Path:
    """Write the file, with the study, the first record's provenance and every commit that made runs in its metadata.

    Raises
    ------
    InputError   no records; a file that cannot be written
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = list(found)
    if not pairs:
        raise InputError("a results file needs at least one record", found="none")
    table = pa.Table.from_pylist([row_of(cell, record) for cell, record in pairs])
    shorter = [
        pa.field(f.name, pa.list_(pa.float32())) if pa.types.is_list(f.type) and f.name != "ages" else f
        for f in table.schema
    ]
    about = {
        "study": study.name, "title": study.title, "question": study.question, "limits": study.limits,
        "seeds": study.seeds, "base": dict(study.base), "factors": {k: dict(v) for k, v in study.factors.items()},
        "kind": study.kind, "provenance": pairs[0][1].provenance, "commits": commits_of(record for _, record in pairs),
    }  # fmt: skip
    table = table.cast(pa.schema(shorter)).replace_schema_metadata({"about": json.dumps(about)})
    pq.write_table(table, require_writable(path), compression="zstd")
    return path


def read_results(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read what `write_results` wrote: what the study was, and its rows.

    Raises
    ------
    InputError   no such file, or one with something else in it
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {})[b"about"])
    except (OSError, pa.ArrowInvalid, KeyError, ValueError) as error:
        raise InputError("results must be a file that a sweep wrote", found=f"{path}: {type(error).__name__}") from None
    return about, table.to_pylist()
