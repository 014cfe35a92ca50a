"""Running benchmarks: case after case, each kept as it finishes, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.peers.catalogue import Benchmark, chosen
from paper_repro.peers.table import section_of
from paper_repro.run import SMOKE
from testbed.core.errors import InputError
from testbed.core.records import RunRecord, provenance, require_writable, write_json_atomic
from testbed.core.sections import print_sections

REPEATS = 7
SAME = ("version", "git", "torch", "platform", "threads", "repeats")  # of runs whose cases may stand in one record


def run_benchmarks(
    names: Sequence[str],
    out: Path,
    *,
    smoke: bool = False,
    repeats: int = REPEATS,
    threads: int | None = None,
    say: Callable[[str], Any] = print,
) -> list[Path]:
    """Run benchmarks, print each one's table, and write a record of each.

    Parameters
    ----------
    names : sequence of str    of `BENCHMARKS`; none for all
    out : Path                 gets NAME.json, and NAME.unfinished.json until then
    smoke : bool               less of everything, two repeats, to see that it runs; all goes to `out`/smoke
    repeats : int              runs of each arm, >= 1
    threads : int | None       of PyTorch (None: as it is)
    say : function             told of each case

    Raises
    ------
    InputError   an unknown name, numbers below 1, a peer that is not installed, a folder that cannot be written to
    """
    if repeats < 1 or (threads is not None and threads < 1):
        raise InputError("`repeats` and `threads` must be >= 1", found=f"{repeats} and {threads}")
    benchmarks = chosen(names)
    out, repeats = (out / SMOKE, 2) if smoke else (out, repeats)
    paths = [require_writable(out / f"{benchmark.name}.json") for benchmark in benchmarks]
    if threads is not None:
        torch.set_num_threads(threads)
    for benchmark, path in zip(benchmarks, paths, strict=True):
        record = run_benchmark(benchmark, path, smoke=smoke, repeats=repeats, say=say)
        print_sections([section_of(record.result, record.provenance)])
    return paths


def run_benchmark(
    benchmark: Benchmark, path: Path, *, smoke: bool, repeats: int, say: Callable[[str], Any] = print
) -> RunRecord:
    """Measure the cases that an earlier run of the same code, threads and repeats has not finished, and write the record."""
    header = provenance() | {"threads": torch.get_num_threads(), "repeats": repeats}
    unfinished = path.with_suffix(".unfinished.json")
    done = _finished(unfinished, header)
    cases = benchmark.cases(smoke)
    for number, case in enumerate(cases, 1):
        if case.name in done:
            continue
        say(f"{benchmark.name} {number}/{len(cases)}: {case.name}")
        done[case.name] = case.measured(repeats)
        write_json_atomic(unfinished, {"provenance": header, "cases": done})
    result = {"name": benchmark.name, "title": benchmark.title, "smoke": smoke}
    record = RunRecord(result=result | {"cases": [done[case.name] for case in cases]}, provenance=header)
    record.save(path)
    unfinished.unlink(missing_ok=True)
    return RunRecord.load(path)


def _finished(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Cases of an interrupted run under the same conditions."""
    try:
        content = json.loads(path.read_text())
        same = all(content["provenance"][name] == header[name] for name in SAME)
        return content["cases"] if same else {}
    except (OSError, ValueError, KeyError):
        return {}
