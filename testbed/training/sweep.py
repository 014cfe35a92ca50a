"""Many runs side by side: one atomic record per finished run, so that a sweep can be killed anywhere and gone on with.

A worker writes its own record before it takes the next run. What a record's `result` holds is a function of the cell alone;
wall time, host and versions stand apart, in `provenance`. A run that diverges is a result; a run that fails with an error is
noted beside the records, does not stop the others, and is tried again by the next sweep.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from testbed.core.errors import InputError
from testbed.core.records import RunRecord, provenance, write_json_atomic
from testbed.training.backends import parallel
from testbed.training.results_file import NEEDED
from testbed.training.study import Cell, Study

Work = Callable[[Cell], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did: records it found, cells it ran, and those that failed, with the last line of each error."""

    found: int
    ran: int
    failed: dict[str, str]


def record_path(out: Path, cell: Cell) -> Path:
    """Where a cell's record goes."""
    return out / f"{cell.id}.json"


def read_record(path: Path) -> RunRecord | None:
    """Read a record; None if there is none, or a file that is none of this cell.

    That is what another program left behind, what lacks a field that is gathered, and a copy of another cell's record, whose
    result would be gathered under wrong levels. Such a cell counts as not done, and its record is made.
    """
    try:
        record = RunRecord.load(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    result = record.result
    whole = isinstance(result, dict) and isinstance(record.provenance, dict) and all(name in result for name in NEEDED)
    return record if whole and result.get("study_cell") == path.stem else None


def require_folder(out: Path) -> None:
    """Make the folder of the records, or refuse it: before the work, not after it.

    Raises
    ------
    InputError   the folder cannot be made or written to
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        _locks(out)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        found, hint = f"{out}: {error.strerror}", "name another --out"
        raise InputError("records need a folder that can be written", found=found, hint=hint) from None


def pending(study: Study, out: Path) -> list[Cell]:
    """Cells without a record."""
    return [cell for cell in study.cells() if read_record(record_path(out, cell)) is None]


def unfinished(study: Study, out: Path, resume: bool) -> list[Cell]:
    """Cells that a sweep is to run.

    Raises
    ------
    InputError   records in `out` and no `resume`
    """
    todo = pending(study, out)
    found = len(study.cells()) - len(todo)
    if found and not resume:
        hint = "go on with --resume, or name another --out"
        raise InputError("a new sweep needs a folder without its records", found=f"{found} in {out}", hint=hint)
    return todo


def sweep(
    study: Study,
    out: Path,
    work: Work,
    *,
    jobs: int = 2,
    backend: str = "loky",
    resume: bool = False,
    progress: Callable[[int, int, float], None] | None = None,
) -> Swept:
    """Run every cell of a study that has no record yet.

    Parameters
    ----------
    study : Study
    out : Path              folder of the records
    work : callable         (cell) -> result, with the fields `results_file.NEEDED`; must be importable by a worker
    jobs : int              workers, one thread each
    backend : str           a name of `backends.BACKENDS`
    resume : bool           go on where records are; without it, records are refused
    progress : callable     (cells done, all cells, seconds since the start), after every cell

    Raises
    ------
    InputError   records in `out` and no `resume`; `out` cannot be written; a backend that does not exist or is not installed
    """
    cells, todo = study.cells(), unfinished(study, out, resume)
    found = len(cells) - len(todo)
    require_folder(out)
    started, failed = time.perf_counter(), {}
    if progress is not None:
        progress(found, len(cells), 0.0)
    tasks = [(cell, work, str(out)) for cell in todo]
    for number, (name, error) in enumerate(parallel(run_cell, tasks, jobs=jobs, backend=backend), 1):
        if error:
            failed[name] = error
        if progress is not None:
            progress(found + number, len(cells), time.perf_counter() - started)
    return Swept(found=found, ran=len(todo) - len(failed), failed=failed)


def run_cell(cell: Cell, work: Work, out: str) -> tuple[str, str]:
    """Run one cell and write its record; (id, last line of the error, "" if there was none).

    A sweep that is killed can leave a worker behind that finishes its cell. The lock, which ends with the process that holds
    it, makes the next sweep wait for that worker and find its record.
    """
    path = record_path(Path(out), cell)
    failure = path.with_suffix(".failed.txt")
    try:
        with FileLock(_locks(Path(out)) / f"{cell.id}.lock"):
            if read_record(path) is not None:
                return cell.id, ""
            try:
                _make_record(cell, work, path)
            except Exception as error:  # a sweep outlives any one of its cells
                with suppress(OSError, ValueError):  # no room for the note either, or no such letters: the sweep tells
                    failure.write_text(traceback.format_exc())
                return cell.id, f"{type(error).__name__}: {error}"
            with suppress(OSError):
                failure.unlink(missing_ok=True)
    except OSError as error:  # no lock can be made
        return cell.id, f"{type(error).__name__}: {error}"
    return cell.id, ""


def _make_record(cell: Cell, work: Work, path: Path) -> None:
    about, started = provenance(cell.seed), time.perf_counter()
    result = work(cell)
    about["seconds"] = round(time.perf_counter() - started, 3)
    missing = [name for name in NEEDED if name not in result]
    if missing:  # the record would count as not done for ever
        raise InputError(f"a run's result needs {', '.join(NEEDED)}", found=f"none of {', '.join(missing)}")
    content = {
        "study_cell": cell.id,
        "levels": cell.levels,
        "seed": cell.seed,
        "config": cell.config.plain(),
        **result,
    }
    write_json_atomic(path, {"result": content, "provenance": about})


def _locks(out: Path) -> Path:
    """Folder of a sweep's locks: files without content, which tell nothing to a reader."""
    folder = out / ".locks"
    folder.mkdir(exist_ok=True)
    return folder


def records(study: Study, out: Path) -> list[tuple[Cell, RunRecord]]:
    """Records of a study's cells, in the study's order.

    Raises
    ------
    InputError   a cell without a record
    """
    out_records: list[tuple[Cell, RunRecord]] = []
    missing: list[str] = []
    for cell in study.cells():
        record = read_record(record_path(out, cell))
        if record is None:
            missing.append(cell.id)
        else:
            out_records.append((cell, record))
    _refuse_missing(missing, out)
    return out_records


def _refuse_missing(missing: Sequence[str], out: Path) -> None:
    if missing:
        found, hint = f"{len(missing)} missing in {out}, first {missing[0]}", "run `testbed sweep` with --resume"
        raise InputError("a study's results need a record of every cell", found=found, hint=hint)
