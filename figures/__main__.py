"""`python -m figures [NAME ...]`: draw figures from the records of earlier runs."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.core.command import run_command
from testbed.core.errors import InputError

HERE = Path(__file__).parent
SCALES = ("tiny", "real")  # of the reproduction's records
VERDICTS = "verdicts.json"
FOLDERS = ("out/verify/records", "out/records")
app = typer.Typer(add_completion=False, rich_markup_mode=None)


def available() -> dict[str, str]:
    """Return figure name -> what it shows: every module here that is neither private nor the style."""
    scripts = (path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("_") and path.stem != "style")
    return {path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0] for path in scripts}


class NoRecord(InputError):
    """No record to draw from: nothing is wrong with those that are there."""


def find_record(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of this name in the folders; verdicts may also stand in one above them."""
    places = [folder / name for folder in folders]
    if name == VERDICTS:
        places += [folder.parent / name for folder in folders]
    return next((path for path in places if path.exists()), None)


def writer(name: str) -> str:
    """Return the command that writes the record with this file name."""
    if name == VERDICTS:
        return "`python -m theory verify --json out/verify/verdicts.json`"
    return f"`python -m theory records {Path(name).stem}`"


def reproducer(script: Any) -> str:
    """Return the command that writes the records of a script's study of the reproduction."""
    return f"`python -m paper_repro run {script.REPRODUCED} --scale {'|'.join(getattr(script, 'SCALES', SCALES))}`"


def read_records(names: tuple[str, ...], folders: Sequence[Path], other: str = "") -> list[Any]:
    """Read the JSON records a figure needs, each from the first folder that has it.

    Parameters
    ----------
    other : str    another command to name where a record is missing, with its "or"

    Raises
    ------
    NoRecord     naming the first record that is missing, and what writes it
    InputError   naming the first record that is unreadable
    """
    found = []
    for name in names:
        path = find_record(name, folders)
        if path is None:
            places = f"no {name} in {' or '.join(map(str, folders))}"
            raise NoRecord("a figure needs its record", found=places, hint=f"{writer(name)}{other} writes it")
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError("a record must be readable JSON", found=f"{path}: {error}") from None
    return found


def draw_one(name: str, folders: Sequence[Path], out: Path) -> list[Path]:
    """Draw one figure and return the files written.

    A script may name a study of the reproduction whose records hold the same curves; NAME_SCALE is drawn from each of these
    that is in the folders, and need not be joined by the figure's own record. A script without a record of its own draws
    nothing where there is none of these.
    """
    script = importlib.import_module(f"figures.{name}")
    study, written = getattr(script, "REPRODUCED", None), []
    others = {scale: f"{study}_{scale}.json" for scale in SCALES}
    others = {scale: file for scale, file in others.items() if study and find_record(file, folders)}
    try:
        for scale, file in others.items():
            written += script.draw(read_records((file,), folders), out, f"{name}_{scale}")
        if script.RECORDS and (not others or all(find_record(own, folders) for own in script.RECORDS)):
            written += script.draw(
                read_records(script.RECORDS, folders, f" or {reproducer(script)}" if study else ""), out
            )
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"the records of figure {name} must have the fields it draws", found=f"{type(error).__name__}: {error}"
        ) from error
    if not others and not script.RECORDS:
        raise NoRecord(
            "a figure needs its record",
            found=f"none of the reproduction in {' or '.join(map(str, folders))}",
            hint=f"{reproducer(script)} writes it",
        )
    return written


@app.command()
def draw(
    names: Annotated[list[str] | None, typer.Argument(help="Figures to draw; none means all with records.")] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder the records are in; may be given several times, the first that has a record counts. "
            f"[default: {' and '.join(FOLDERS)}]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the images.")] = Path("out/figures"),
    list_: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
) -> None:
    """Draw figures from records: NAME.pdf, NAME.png and NAME.json (the numbers drawn).

    `make verify` and `python -m theory records` write to the first default folder, `python -m paper_repro run` to the second.
    """
    known = available()
    if list_:
        for name, title in known.items():
            print(f"{name}: {title}")
        return
    for name in names or ():
        if name not in known:
            raise InputError("a figure must have a known name", found=repr(name), hint="one of " + ", ".join(known))
    folders, left_out = records or [Path(folder) for folder in FOLDERS], {}
    for name in names or known:
        try:
            print(f"{name}: {', '.join(map(str, draw_one(name, folders, out)))}")
        except InputError as error:
            if names:
                raise
            left_out[name] = error
    if len(left_out) == len(known):
        broken = [error for error in left_out.values() if not isinstance(error, NoRecord)]
        raise (
            broken[0]
            if broken
            else NoRecord(
                "at least one figure must have its record",
                found=f"none in {' or '.join(map(str, folders))}",
                hint="`make verify`, `python -m theory records` and `python -m paper_repro run all --scale tiny` write them",
            )
        )
    for name, error in left_out.items():
        print(f"{name}: left out: {error}")


def main() -> int:
    """Run the command line."""
    return run_command(app, "python -m figures")


if __name__ == "__main__":
    sys.exit(main())
