"""Run the theory command line: `python -m theory`."""

from __future__ import annotations

import sys


def main() -> None:
    """Console entry point."""
    from testbed.core.command import run_command
    from theory.cli import app

    sys.exit(run_command(app, "theory"))


if __name__ == "__main__":
    main()
