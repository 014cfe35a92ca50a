"""`make verify`: its parts in their order, all of them even if one fails, and the first failure as the outcome."""

from __future__ import annotations

import os

import pytest

from tests.architecture.test_make import checks, make

PARTS = [
    "theory verify",
    "theory records",
    "testbed diagnose",
    "figures --records",
    "theory report",
    "testbed diagnose",
]

PYTHON = """#!/bin/sh
echo "ran $2 $3"
case "$2 $3" in {failing}) exit {status};; esac
"""


def verify(folder, failing: str, status: int):
    """Run it with a Python that only says what it was asked, and fails where told."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(failing=f'"{failing}"', status=status))
    python.chmod(0o755)
    stamp = folder / ".installed"
    stamp.write_text("")
    newest = max((checks.ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    os.utime(stamp, (newest + 1, newest + 1))
    done = make("verify", f"VENV={folder}")
    return done, [line.removeprefix("ran ") for line in done.stdout.splitlines() if line.startswith("ran ")]


def test_the_parts_run_in_order_and_the_last_line_says_where_to_look(tmp_path):
    done, ran = verify(tmp_path, "nothing", 0)
    assert done.returncode == 0
    assert ran == PARTS
    assert done.stdout.splitlines()[-1].startswith("Read out/verify/report.html")


@pytest.mark.parametrize("failing", PARTS[:-1])
def test_a_failing_part_fails_the_whole_and_stops_nothing(failing, tmp_path):
    done, ran = verify(tmp_path, failing, 3)
    assert done.returncode != 0
    assert ran == PARTS
    assert "status 3" in done.stderr


def test_an_interruption_stops_it(tmp_path):
    done, ran = verify(tmp_path, PARTS[0], 130)
    assert done.returncode != 0
    assert ran == PARTS[:1]
