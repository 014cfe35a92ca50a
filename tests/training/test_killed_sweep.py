"""A sweep of real training runs, killed with SIGKILL at ten random moments: nothing is lost, nothing is made twice."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.training.command_worlds import FACTORS, study_file
from tests.training.test_sweep import results
from tests.training.test_sweep_command import ROOT, sweep

SEEDS = 16
KILLS = 10


def killed(file, out, wait):
    """Sweep with two workers until `wait` seconds after the first new record; every process of the sweep is killed at once."""
    before = len(list(out.glob("*.json")))
    command = [sys.executable, "-m", "testbed", "sweep", file, "--out", out, "--jobs", "2", "--resume"]
    process = subprocess.Popen(
        command, start_new_session=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.json"))) <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)  # killed before it has written anything, it has nothing to lose
    time.sleep(wait)
    alive = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    return alive


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_runs_killed_at_ten_moments_end_as_if_nothing_had_happened(tmp_path, rng):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    file = study_file(tmp_path, base={"updates": 6}, seeds=SEEDS)
    assert sweep(file, "--out", whole, "--jobs", 2) == 0
    cut.mkdir()
    written: dict[str, int] = {}
    kills = 0
    for wait in rng.uniform(0.0, 0.4, KILLS):
        kills += killed(file, cut, wait)
        for path in cut.glob("*.json"):
            changed = path.stat().st_mtime_ns
            assert written.setdefault(path.name, changed) == changed, "a finished run was made again"
    cells = SEEDS * len(FACTORS["rule"]) * len(FACTORS["age"])
    assert kills == KILLS <= len(written) < cells == len(results(whole))
    assert sweep(file, "--out", cut, "--jobs", 2, "--resume") == 0
    assert results(cut) == results(whole)
    assert {name: (cut / name).stat().st_mtime_ns for name in written} == written
    assert {path.name for path in cut.iterdir()} == {path.name for path in whole.iterdir()}
