"""Command lines start fast because `--help` loads no numerical library, and they refuse bad usage in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture import checks


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
