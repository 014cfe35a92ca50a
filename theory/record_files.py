"""Writing records: one JSON per name, each complete as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from testbed.core.records import RunRecord, provenance, require_writable
from theory.progress import progress
from theory.records import chosen, record
from theory.run import one_thread


def write_records(names: Sequence[str], out: Path) -> list[Path]:
    """Compute and write records (all if no name is given); a line for each.

    Raises
    ------
    InputError   an unknown name, a folder that cannot be written to; before anything is computed
    """
    wanted, header = chosen(names), provenance()
    require_writable(out / "record.json")
    written = []
    with progress("computing", len(wanted)) as step:
        for name in wanted:
            started = time.perf_counter()
            result = one_thread(record, name)
            written.append(RunRecord(result=result, provenance=header).save(out / f"{name}.json"))
            step(f"{name}: {written[-1]} ({time.perf_counter() - started:.1f} s)")
    return written
