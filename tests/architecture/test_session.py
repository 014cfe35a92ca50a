"""The rules of tests/conftest.py, shown on small test files run on their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture import checks

FILE = """
import pytest
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.slow
@pytest.mark.gpu
def test_slow_on_gpu(): pass
def test_skips(): pytest.importorskip("no_such_module")
@pytest.mark.xfail(strict=True)
def test_expected(): assert False
def test_stream(seed): print("seed", seed)
def test_same_in_another_test(rng, generator): assert rng.integers(2**60) == 0
def test_b_counts(says): says("5 cases")
def test_a_counts(says): says("3 cases"); says("7 rows")
def test_c_counts(says): says("not all"); assert False
"""


@pytest.fixture
def pytest_run(tmp_path):
    (tmp_path / "pyproject.toml").write_text((checks.ROOT / "pyproject.toml").read_text())
    (tmp_path / "conftest.py").write_text((checks.ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_small.py").write_text(FILE)

    def run(*arguments, **environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ALLOW_SKIPS"))}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_small.py", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=kept | environment, capture_output=True, text=True, check=False, timeout=100
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_ends_with_what_it_left_out(pytest_run, workers):
    status, out = pytest_run("-q", "-n", workers)
    assert status == 1
    assert [line.split() for line in out.strip().splitlines()[-5:]] == [
        ["left", "out", "by", "mark:"],
        ["slow", "2", "make", "stats"],
        ["gpu", "1", ".venv/bin/python", "-m", "pytest", "-m", "gpu"],
        ["browser", "0", ".venv/bin/python", "-m", "pytest", "-m", "browser"],
        ["repro", "0", ".venv/bin/python", "-m", "pytest", "-m", "repro"],
    ]


def test_another_selection_is_counted_apart(pytest_run):
    _, out = pytest_run("-q", "-k", "stream")
    assert out.strip().splitlines()[-1].startswith("left out by another selection")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_tests_say_is_printed_at_the_end(pytest_run, workers):
    _, out = pytest_run("-q", "-n", workers, "-k", "counts")
    lines = out.splitlines()
    start = next(number for number, line in enumerate(lines) if "= counts =" in line)
    said = ["test_a_counts: 3 cases", "test_a_counts: 7 rows", "test_b_counts: 5 cases", "test_c_counts: not all"]
    assert lines[start + 1 : start + 5] == said


def test_a_skip_is_a_failure_unless_allowed(pytest_run):
    status, out = pytest_run("-k", "skips")
    assert status == 1
    assert "no_such_module" in out
    assert "unless ALLOW_SKIPS=1" in out
    assert pytest_run("-k", "skips", ALLOW_SKIPS="1")[0] == 0


def test_an_expected_failure_is_no_skip(pytest_run):
    assert pytest_run("-k", "expected")[0] == 0


def test_a_stream_depends_on_the_test_and_the_epoch_only(pytest_run):
    def seed(*arguments):
        _, out = pytest_run("-s", *arguments)
        return next(line.split("seed ")[1] for line in out.splitlines() if "seed " in line)

    alone = seed("-k", "stream")
    assert seed("-k", "stream or expected") == alone
    assert seed("-k", "stream", "--seed-epoch", "1") != alone
