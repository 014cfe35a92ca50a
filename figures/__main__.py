"""`python -m figures [NAME ...]`: draw figures from the records of earlier runs."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.core.command import run_command
from testbed.core.errors import InputError

HERE = Path(__file__).parent
SCALES = ("tiny", "real")  # of the reproduction's records
app = typer.Typer(add_completion=False, rich_markup_mode=None)


def available() -> dict[str, str]:
    """Return figure name -> what it shows: every module here that is neither private nor the style."""
    scripts = (path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("_") and path.stem != "style")
    return {path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0] for path in scripts}


def read_records(names: tuple[str, ...], folder: Path) -> list[Any]:
    """Read the JSON records a figure needs, from the folder or else from the one above it, where verdicts are.

    Raises
    ------
    InputError   naming the first record that is missing or unreadable
    """
    found = []
    for name in names:
        path = folder / name
        if not path.exists() and (folder.parent / name).exists():
            path = folder.parent / name
        try:
            found.append(json.loads(path.read_text()))
        except FileNotFoundError:
            raise InputError("a figure needs its record", found=f"no file {path}", hint="run what writes it") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError("a record must be readable JSON", found=f"{path}: {error}") from None
    return found


def draw_one(name: str, records: Path, out: Path) -> list[Path]:
    """Draw one figure and return the files written.

    A script may name a study of the reproduction whose records hold the same curves; NAME_SCALE is drawn from each of these
    that is in the folder, and need not be joined by the figure's own record. A script without a record of its own draws
    nothing where there is none of these.
    """
    script = importlib.import_module(f"figures.{name}")
    study, written = getattr(script, "REPRODUCED", None), []
    others = {scale: records / f"{study}_{scale}.json" for scale in SCALES}
    others = {scale: path for scale, path in others.items() if study and path.exists()}
    try:
        for scale, path in others.items():
            written += script.draw(read_records((path.name,), records), out, f"{name}_{scale}")
        if script.RECORDS and (not others or all((records / own).exists() for own in script.RECORDS)):
            written += script.draw(read_records(script.RECORDS, records), out)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"the records of figure {name} must have the fields it draws", found=f"{type(error).__name__}: {error}"
        ) from error
    return written


@app.command()
def draw(
    names: Annotated[list[str] | None, typer.Argument(help="Figures to draw; none means all with records.")] = None,
    records: Annotated[Path, typer.Option(help="Folder the records are in.")] = Path("out/verify/records"),
    out: Annotated[Path, typer.Option(help="Folder for the images.")] = Path("out/figures"),
    list_: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
) -> None:
    """Draw figures from records: NAME.pdf, NAME.png and NAME.json (the numbers drawn)."""
    known = available()
    if list_:
        for name, title in known.items():
            print(f"{name}: {title}")
        return
    for name in names or ():
        if name not in known:
            raise InputError("a figure must have a known name", found=repr(name), hint="one of " + ", ".join(known))
    for name in names or known:
        try:
            written = draw_one(name, records, out)
            if names and not written:
                raise InputError(
                    "a figure needs its record",
                    found=f"none of the reproduction in {records}",
                    hint="`python -m paper_repro run`",
                )
        except InputError as error:
            if names:
                raise
            print(f"{name}: left out: {error}")
            continue
        if written:
            print(f"{name}: {', '.join(map(str, written))}")


def main() -> int:
    """Run the command line."""
    return run_command(app, "python -m figures")


if __name__ == "__main__":
    sys.exit(main())
