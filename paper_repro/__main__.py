"""`python -m paper_repro`: the papers' claims and the verdicts on them."""

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


def main() -> int:
    """Run the command line."""
    return run_command(app, "python -m paper_repro")


if __name__ == "__main__":
    sys.exit(main())
