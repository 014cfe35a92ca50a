"""Running one table or figure: compute, record, print the paper beside ours."""

from __future__ import annotations

import ast
import importlib
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from paper_repro.studies import study_at
from paper_repro.study import Setting
from paper_repro.tables import table_text, write_tables
from testbed.core.records import RunRecord, provenance, require_writable
from theory.run import one_thread

FIGURES = Path(__file__).parents[1] / "figures"
SMOKE = "smoke"  # folder of what `--smoke` leaves, so that it never replaces a full result


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left: its record as a reader of the file has it, the files written (record, Markdown, CSV), the Markdown."""

    record: RunRecord
    files: tuple[Path, ...]
    text: str

    @property
    def drawn_by(self) -> list[str]:
        """Commands that draw figures from this record."""
        folder = shlex.quote(str(self.files[0].parent))
        return [f"python -m figures {name} --records {folder}" for name in figures_of(self.record.result["name"])]


def figures_of(study: str, folder: Path = FIGURES) -> list[str]:
    """Return names of the figures that are drawn from a study's record: of the scripts whose REPRODUCED is the study.

    Scripts are read, not imported: the two packages do not know each other, and a folder without figures is none.

    Examples
    --------
    >>> figures_of("spire_staleness"), figures_of("cis_table3")
    (['spire_staleness'], [])
    """
    return [path.stem for path in sorted(folder.glob("*.py")) if _constant(path, "REPRODUCED") == study]


def _constant(path: Path, name: str) -> object:
    """Return what a module assigns to a name at its top, by itself or in a tuple of names; None if nothing."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for left, right in pairs:
                if isinstance(left, ast.Name) and left.id == name and isinstance(right, ast.Constant):
                    return right.value
    return None


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
    written = RunRecord.load(path)  # infinities are strings in it, as in the tables
    files = write_tables(written.result, out / "tables", stem)
    return Run(written, (path, *files), table_text(written.result))
