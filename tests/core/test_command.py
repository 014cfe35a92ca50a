"""Exit statuses and messages that every command line shares."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import pytest
import typer

from testbed.core.command import run_command
from testbed.core.errors import InputError


@pytest.fixture
def app():
    app = typer.Typer()

    @app.command()
    def act(how: Annotated[str, typer.Argument()] = "well", times: int = 1) -> None:
        if how == "badly":
            raise InputError("`how` must be\n good", found="'badly'", hint="try 'well'")
        if how == "refuted":
            raise typer.Exit(1)
        if how == "interrupted":
            raise KeyboardInterrupt
        if how == "broken":
            raise ZeroDivisionError
        print("done", times)

    return app


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 0, ""),
        (["refuted"], 1, ""),
        (["badly"], 2, "act: `how` must be good; found 'badly' (try 'well')\n"),
        (["interrupted"], 130, None),
    ],
)
def test_status_and_sentence(app, capsys, arguments, status, sentence):
    assert run_command(app, "act", arguments) == status
    printed = capsys.readouterr().err
    assert sentence is None or printed == sentence


@pytest.mark.parametrize("arguments", [["--tims", "2"], ["--times", "x"], ["well", "again"]])
def test_bad_usage_is_one_line_and_exit_2(app, capsys, arguments):
    assert run_command(app, "act", arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("act: ")
    assert printed.err.count("\n") == 1


def test_a_fault_of_our_own_is_not_hidden(app):
    with pytest.raises(ZeroDivisionError):
        run_command(app, "act", ["broken"])


def test_a_closed_pipe_leaves_no_traceback():
    code = (
        "import sys, typer; from testbed.core.command import run_command; app = typer.Typer()\n"
        "@app.command()\ndef act():\n    for i in range(100000): print(i)\n"
        "sys.exit(run_command(app, 'act', []))"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with writer:
        assert writer.stdout.readline() == "0\n"
        writer.stdout.close()
        assert "Traceback" not in writer.stderr.read()


def test_nothing_asked_for_is_answered_by_the_help_page(capsys):
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.command()(lambda: None)
    app.command("other")(lambda: None)
    assert run_command(app, "act", []) == 2
    assert capsys.readouterr().err.splitlines()[0] == "Usage: act [OPTIONS] COMMAND [ARGS]..."
