"""Command lines start fast because `--help` loads no numerical library, and they refuse bad usage in one sentence."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from testbed.cli import app
from tests.architecture import checks

MOST_SECONDS = 1.5


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=checks.ROOT, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("package", checks.PACKAGES)
def test_help_loads_no_numerical_library(package):
    done = python("-X", "importtime", "-m", package, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert checks.heavy_imports(done.stderr) == []


@pytest.mark.parametrize("command", [command.name or command.callback.__name__ for command in app.registered_commands])
def test_the_help_of_every_command_is_instant_and_loads_no_numerical_library(command):
    """CPU time: what else the machine does is no fault of the command's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-X", "importtime", "-m", "testbed", command, "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and f"Usage: testbed {command}" in done.stdout, done.stderr
    assert checks.heavy_imports(done.stderr) == []
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_SECONDS


@pytest.mark.parametrize("package", checks.PACKAGES)
def test_importing_a_package_loads_no_numerical_library(package):
    done = python("-X", "importtime", "-c", f"import {package}")
    assert done.returncode == 0, done.stderr
    assert checks.heavy_imports(done.stderr) == []


@pytest.mark.parametrize("package", checks.PACKAGES)
def test_bad_usage_is_one_sentence_and_exit_2(package):
    done = python("-m", package, "--no-such-option")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "no-such-option" in done.stderr
