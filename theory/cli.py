"""Command line of the theory package. Numerical libraries are imported inside the commands, so that `--help` is instant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from testbed.core.errors import InputError

app = typer.Typer(
    name="theory",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decide theorems about off-policy correction: algebra, enumeration and sampling must agree, mutants must die.",
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Catalogue ids such as S4; none means all.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write the records here as JSON.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Worker processes.")]
JOBS = min(2, os.cpu_count() or 1)  # two workers halve the wait; more pay their imports with less to do
Seed = Annotated[int, typer.Option("--seed", help="Seed of the sampled checks; the exact ones have none.")]


@app.command()
def verify(
    ids: Ids = None,
    json: Json = None,
    no_mutants: Annotated[bool, typer.Option("--no-mutants", help="Do not run the mutants.")] = False,
    jobs: Jobs = JOBS,
    seed: Seed = 0,
) -> None:
    """Decide theorems. Exit 0 if and only if all are decided as catalogued and every mutant is killed."""
    from theory.run import verify_all

    raise typer.Exit(verify_all(ids or [], json, mutants=not no_mutants, jobs=jobs, seed=seed))


@app.command()
def show(
    theorem: Annotated[str, typer.Argument(metavar="ID", help="Catalogue id such as S4.")],
    latex: Annotated[bool, typer.Option("--latex", help="Print the derivation in LaTeX.")] = False,
) -> None:
    """Print statement, hypotheses, source, and the derivation step by step."""
    from theory.show import show_theorem

    typer.echo(show_theorem(theorem, latex=latex))


@app.command("break")
def break_(
    mutant: Annotated[str | None, typer.Argument(metavar="ID[:MUTANT]", help="For instance S2:labels_shifted.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run every mutant of every theorem.")] = False,
    json: Json = None,
    jobs: Jobs = JOBS,
) -> None:
    """Drop a hypothesis or plant a bug. Prints REFUTED with the margin and exits 1; exits 3 if a mutant survives."""
    from theory.run import break_some

    if all_ == (mutant is not None):
        raise InputError(
            "give either ID[:MUTANT] or --all", found="both" if all_ else "neither", hint="e.g. S2:labels_shifted"
        )
    raise typer.Exit(break_some(mutant, json, jobs=jobs))


@app.command()
def records(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Records; none means all.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for NAME.json.")] = Path(
        "out/verify/records"
    ),
    list_: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
) -> None:
    """Write the data behind the report's figures, computed exactly: DIR/NAME.json."""
    from theory.record_files import write_records
    from theory.records import available

    if list_:
        typer.echo("\n".join(f"{name}: {title}" for name, title in available().items()))
        return
    write_records(names or [], out)


@app.command()
def report(
    verdicts: Annotated[Path, typer.Option(metavar="PATH", help="Record of `verify --json`.")] = Path(
        "out/verify/verdicts.json"
    ),
    diagnosis: Annotated[Path | None, typer.Option(metavar="PATH", help="Record of `testbed diagnose --json`.")] = None,
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of finished images.")] = None,
    out: Annotated[Path, typer.Option(metavar="PATH", help="The page to write.")] = Path("out/verify/report.html"),
) -> None:
    """Assemble one self-contained HTML page from records and finished images."""
    from theory.report import write_report

    path = write_report(verdicts, diagnosis, figures, out)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


@app.command()
def matrix(ids: Ids = None, json: Json = None, jobs: Jobs = 1) -> None:
    """Plant every bug under every theorem and print which theorems notice."""
    from theory.matrix import kill_matrix

    raise typer.Exit(kill_matrix(ids or [], json, jobs=jobs))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="verdicts.json of one run.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="verdicts.json of another.")],
) -> None:
    """Print what changed between two runs. Exit 0 if no verdict or mutant changed, 1 otherwise."""
    from theory.compare import compare_runs

    lines = compare_runs(before, after)
    typer.echo("\n".join(lines) or "no verdict changed")
    raise typer.Exit(1 if lines else 0)
