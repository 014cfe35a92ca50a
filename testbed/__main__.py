"""Run the testbed's command line: `python -m testbed`."""

from __future__ import annotations

import sys


def main() -> None:
    """Console entry point."""
    from testbed.cli import app
    from testbed.core.command import run_command

    sys.exit(run_command(app, "testbed"))


if __name__ == "__main__":
    main()
