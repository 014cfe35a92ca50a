"""`python -m paper_repro`: the papers' claims and the verdicts on them, their tables and figures beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.core.command import run_command

app = typer.Typer(
    help="What the papers print, beside what this project finds.", add_completion=False, rich_markup_mode=None
)


@app.callback()
def _commands() -> None:
    """What the papers print, beside what this project finds."""


@app.command("list")
def list_claims(
    verdicts: Annotated[Path | None, typer.Option(help="A verdicts.json, to add each theorem's verdict.")] = None,
) -> None:
    """Print every claim with the printed number and the theorems that decide it."""
    from paper_repro.claims import claims
    from theory.verdict_file import load_verdicts, verdict_word

    found = None if verdicts is None else load_verdicts(verdicts)
    for number, claim in enumerate(claims(), 1):
        print(f"{number:2d}. {claim.paper}: {claim.claim}" + (f" [printed: {claim.printed}]" if claim.printed else ""))
        if not claim.theorems:
            print("    decided by: no theorem")
        elif found is None:
            print(f"    decided by: {' '.join(claim.theorems)}")
        else:
            print("    decided by: " + ", ".join(f"{name} {verdict_word(found.get(name))}" for name in claim.theorems))
        if claim.note:
            print(f"    note: {claim.note}")
    from paper_repro.studies import STUDIES

    print("Tables and figures (`run NAME --scale SCALE`):")
    width = max(map(len, STUDIES))
    for study in STUDIES.values():
        print(f"{study.name:{width}} {study.title} [{', '.join(study.scales)}]")


@app.command("run")
def run(
    names: Annotated[list[str], typer.Argument(help="Tables and figures, as `list` prints them; all for every one.")],
    scale: Annotated[str, typer.Option(help="tiny (models made on the spot) or real (recorded small model).")],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Less of everything, to see that it runs; written to smoke/ in --out.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for records/ and tables/.")] = Path("out"),
    full: Annotated[bool, typer.Option("--full", help="Print long tables as well, as Markdown.")] = False,
) -> None:
    """Compute tables or figures and print the paper beside ours; of a long table only cells, claims and checks."""
    from paper_repro.studies import STUDIES, require_scale, study_at

    require_scale(scale)
    wanted = [s.name for s in STUDIES.values() if scale in s.scales] if names == ["all"] else names
    for name in wanted:
        study_at(name, scale)
    from paper_repro.run import SMOKE, run_study  # takes seconds, hence after bad usage is refused
    from paper_repro.tables import LONG, short_form
    from testbed.core.sections import print_sections

    for name in wanted:
        done = run_study(name, scale, out, smoke=smoke)
        lines = done.text.count("\n")
        if full or lines <= LONG:
            print(done.text)
        else:
            print_sections(short_form(done.record.result))
            print(f"\nthe whole table, {lines} lines with what its verdicts mean: {done.files[1]} (--full prints it)")
        print("wrote " + ", ".join(map(str, done.files)))
        for command in done.drawn_by:
            print(f"`{command}` draws it")
    if smoke:
        print(f"smoke run: everything is in {out / SMOKE}; full results in {out} are left as they are")


@app.command("tables")
def tables(out: Annotated[Path, typer.Option(help="Folder with records/.")] = Path("out")) -> None:
    """Write the tables of every record again, and print one line per table and figure."""
    from paper_repro.tables import tables_from_records

    print("\n".join(tables_from_records(out)))


@app.command("measure")
def measure(
    what: Annotated[
        str, typer.Argument(help="mismatch (of two engines), speculation (drafts) or cost (of a training step).")
    ] = "mismatch",
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("out/results"),
    work: Annotated[
        Path | None,
        typer.Option(help="Folder for finished parts.", show_default="out/real_mismatch or out/real_speculation"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of operands and tokens.")] = 0,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few small parts; files go to smoke/ in --out.")] = False,
) -> None:
    """Measure the real model again (`make real` first; minutes; goes on where it was interrupted), or tiny models' cost."""
    from testbed.core.errors import InputError

    if what not in ("mismatch", "speculation", "cost"):
        raise InputError("what is measured must be mismatch, speculation or cost", found=repr(what))
    if what == "cost":
        from paper_repro.cost_phases import measure_cost_and_write
        from paper_repro.run import SMOKE

        print(f"wrote {measure_cost_and_write(out / SMOKE if smoke else out, smoke=smoke)}")
        return
    from paper_repro import measure as measurement

    command = measurement.measure_and_write if what == "mismatch" else measurement.measure_speculation_and_write
    for path in command(out, Path(f"out/real_{what}") if work is None else work, seed=seed, smoke=smoke):
        print(f"wrote {path}")


@app.command("bench")
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks; all for none.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("out/bench"),
    smoke: Annotated[bool, typer.Option("--smoke", help="Less of everything; written to smoke/ in --out.")] = False,
    repeats: Annotated[int, typer.Option(help="Runs of each arm; arms take turns.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Threads of PyTorch; as many as it takes when not given.")] = None,
) -> None:
    """Time this project beside transformers, and its engines beside each other (goes on where it was interrupted).

    autoregressive (needs `make real`): both sampling loops and generate; speculation: drafts and none; passes: weighting,
    loss, tabular sampling. Rates and ratios come with interquartile ranges. Run it on an idle machine: on a busy one only ratios
    mean something, at --threads 1. OMP_WAIT_POLICY=passive wakes threads anew for every product, which halves our loop's rate.
    """
    from paper_repro.peers.runner import run_benchmarks

    for path in run_benchmarks(
        names or [], out, smoke=smoke, repeats=repeats, threads=threads, say=lambda line: print(line, flush=True)
    ):
        print(f"wrote {path}")


def main() -> int:
    """Run the command line."""
    return run_command(app, "python -m paper_repro")


if __name__ == "__main__":
    sys.exit(main())
