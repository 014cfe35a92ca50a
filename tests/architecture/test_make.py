"""The Makefile and the continuous-integration script: what they call, and what they say when they cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from tests.architecture import checks

MAKE = shutil.which("make")


def make(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    assert MAKE is not None, "make must be on PATH"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        [MAKE, *words], cwd=checks.ROOT, env=environment or inherited,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_help_names_every_target():
    targets = set(re.findall(r"^([a-z-]+):", (checks.ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"venv", "verify", "test", "check", "stats", "notebooks", "lab", "format", "clean", "help"} <= targets
    printed = make("help").stdout
    assert {target for target in targets if not re.search(rf"^  {target} ", printed, re.MULTILINE)} == set()


def test_without_python_the_answer_is_one_sentence(tmp_path):
    done = make("venv", f"VENV={tmp_path / 'venv'}", PATH=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode != 0
    assert len([line for line in done.stderr.splitlines() if "Python 3.11" in line]) == 1
    assert not (tmp_path / "venv").exists()


def test_the_environment_is_rebuilt_when_its_inputs_change(tmp_path):
    (tmp_path / "venv").mkdir()
    stamp = tmp_path / "venv" / ".installed"
    stamp.write_text("")
    newest = max((checks.ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    os.utime(stamp, (newest + 1, newest + 1))
    assert make("--question", "venv", f"VENV={stamp.parent}").returncode == 0
    os.utime(stamp, (newest - 1, newest - 1))
    assert make("--question", "venv", f"VENV={stamp.parent}").returncode == 1


def test_continuous_integration_calls_make_test_and_nothing_else():
    script = checks.ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."', "exec make test </dev/null"]
