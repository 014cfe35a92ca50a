"""Running one table or figure: compute, record, print the paper beside ours."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path

from paper_repro.studies import study_at
from paper_repro.study import Setting
from paper_repro.tables import table_text, write_tables
from testbed.core.records import RunRecord, provenance, require_writable
from theory.run import one_thread

SMOKE = "smoke"  # folder of what `--smoke` leaves, so that it never replaces a full result


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left: its record, the files written, the text to print."""

    record: RunRecord
    files: tuple[Path, ...]
    text: str


def run_study(name: str, scale: str, out: Path, *, smoke: bool = False) -> Run:
    """Compute a table or figure and write its record and tables under `out`.

    Parameters
    ----------
    name : str       a key of STUDIES
    scale : str      "tiny" or "real"
    out : Path       gets records/NAME_SCALE.json and tables/NAME_SCALE.md, .csv
    smoke : bool     less of everything, to see that it runs; the record says so, and all goes to `out`/smoke

    Raises
    ------
    InputError   an unknown name or scale, a study that has no such scale, a folder that cannot be written to
    """
    study, stem = study_at(name, scale), f"{name}_{scale}"
    out = out / SMOKE if smoke else out
    setting = Setting(scale=scale, smoke=smoke, out=out)
    require_writable(out / "records" / f"{stem}.json")
    module, function = study.home.split(":")
    header, started = provenance("paper_repro"), time.perf_counter()
    compute = getattr(importlib.import_module(f"paper_repro.{module}"), function)
    finding = one_thread(compute, setting)
    result = {"name": name, "title": study.title, "scale": scale, "smoke": smoke, **finding.plain()}
    header |= {"seconds": round(time.perf_counter() - started, 1)}
    if scale == "real":
        home, function = study.measurement.split(":")
        header |= {"measurement": getattr(importlib.import_module(f"paper_repro.{home}"), function)()}
    record = RunRecord(result=result, provenance=header)
    path = record.save(out / "records" / f"{stem}.json")
    files = write_tables(RunRecord.load(path).result, out / "tables", stem)
    return Run(record, (path, *files), table_text(RunRecord.load(path).result))
