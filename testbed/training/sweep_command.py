"""`testbed sweep`: every run of a study, or a plan of it. Numerical libraries are imported inside: `--help` is instant."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from testbed.training.study import Study
    from testbed.training.sweep import Swept

RUNS = Path("out") / "runs"
CLUSTERS = ("DASK_SCHEDULER_ADDRESS", "RAY_ADDRESS")  # of machines whose cache of warm starts is not this one's


def sweep(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A study's .toml file, or a bundled study's name.")],
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Workers, one thread each.")] = 2,
    backend: Annotated[str, typer.Option(metavar="NAME", help="loky (this machine), dask or ray.")] = "loky",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where records are.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would run, tell and cost; run a pilot only.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Repetitions, instead of the study's.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Records; else out/runs/STUDY.", show_default=False)
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Gather all records in this .parquet file.", show_default=False)
    ] = None,
) -> None:
    """Run a study: every combination, every seed, side by side.

    One record per finished run, written at once, so that Ctrl-C loses the runs under way only. A run that diverges is a
    result; one that fails is listed at the end, and tried again by --resume. DASK_SCHEDULER_ADDRESS or RAY_ADDRESS names
    a cluster that exists; else dask and ray start one on this machine. README.md, "A study of your own", shows how to
    write one; those that come with the library are testbed/training/studies/*.toml.
    """
    from testbed.core.records import require_writable
    from testbed.core.sections import print_sections
    from testbed.training.backends import require_backend
    from testbed.training.config_file import config_path
    from testbed.training.possible import require_possible
    from testbed.training.study import load_study
    from testbed.training.warm_start import one_thread

    require_backend(backend)
    study = load_study(config_path(config), seeds=seeds)
    folder = RUNS / study.name if out is None else out
    if results is not None:
        require_writable(results)
    configs = [study.config(levels) for levels in study.combinations()]
    with one_thread():
        require_possible(configs)
        if plan:
            from testbed.training.plan import planned
            from testbed.training.plan_printed import plan_sections

            print_sections(plan_sections(study, planned(study, folder, jobs)))
            return
    from testbed.training.sweep import records
    from testbed.training.sweep_printed import found_section

    done = swept(study, folder, jobs=jobs, backend=backend, resume=resume)
    typer.echo(f"{done.ran} runs made, {done.found} found, {len(done.failed)} failed; records in {folder}")
    if done.failed:
        lines = [f"  {name}: {error}" for name, error in sorted(done.failed.items())]
        hint = "their errors stand in *.failed.txt beside the records; --resume tries them again"
        print("\n".join(["failed:", *lines, hint]), file=sys.stderr)
        raise typer.Exit(1)
    print_sections([found_section(study, records(study, folder))])
    if results is not None:
        from testbed.training.results_file import write_results

        typer.echo(f"results in {write_results(study, iter(records(study, folder)), results)}")


def swept(study: Study, folder: Path, *, jobs: int, backend: str, resume: bool) -> Swept:
    """Make the warm starts, then the runs, with progress.

    Raises
    ------
    InputError          records in the folder and no `resume`, or a folder that cannot be written
    KeyboardInterrupt   Ctrl-C; every finished run keeps its record
    """
    from testbed.training.lab import cell_result
    from testbed.training.progress import counted_progress
    from testbed.training.starts import make_starts, missing_starts
    from testbed.training.sweep import pending, require_folder, sweep, unfinished

    todo, total = unfinished(study, folder, resume), len(study.cells())
    require_folder(folder)  # warm starts take minutes
    try:
        starts = [] if any(name in os.environ for name in CLUSTERS) else missing_starts(cell.config for cell in todo)
        if starts:
            with counted_progress("warm start", len(starts)) as report:
                make_starts(starts, jobs, report)
        with counted_progress("run", total, total - len(todo)) as report:
            return sweep(
                study, folder, cell_result, jobs=jobs, backend=backend, resume=resume,
                progress=lambda done, _, seconds: report(done, ""),
            )  # fmt: skip
    except KeyboardInterrupt:
        left = len(pending(study, folder))
        said = f"stopped with {total - left} of {total} runs done; the same command with --resume goes on"
        print(said, file=sys.stderr)
        raise
