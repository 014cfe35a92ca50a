"""How every command line of the project ends: a number, or one sentence and exit status 2, or 130 after Ctrl-C."""

from __future__ import annotations

import os
import sys

import typer

from testbed.core.errors import InputError


def run_command(app: typer.Typer, name: str, arguments: list[str] | None = None) -> int:
    """Run a typer application and return its exit status.

    Parameters
    ----------
    app : typer.Typer                  the application; a command may `raise typer.Exit(code)`
    name : str                         what the user typed to get here, e.g. "python -m theory"
    arguments : list[str], optional    instead of `sys.argv[1:]`

    Returns
    -------
    int    what the command asked for; 2 and one sentence on stderr for bad usage or bad input; 130 after Ctrl-C

    Examples
    --------
    >>> app = typer.Typer()
    >>> hello = app.command()(lambda: print("hello"))
    >>> run_command(app, "greet", [])
    hello
    0
    """
    try:
        outcome = app(args=arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _refuse(name, str(error))
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # nothing was asked for: the help page is the answer
            print(message, file=sys.stderr)
            return 2
        return _refuse(name, message)
    except (KeyboardInterrupt, typer.Abort):
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return outcome if isinstance(outcome, int) else 0


def _refuse(name: str, sentence: str) -> int:
    print(f"{name}: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
