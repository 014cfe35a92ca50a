"""The command that runs a study: what it prints, keeps, lists as failed, goes on with, gathers, plans and refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from testbed.cli import app
from testbed.core.command import run_command
from testbed.core.records import write_json_atomic
from testbed.core.sections import WIDTH, plain_lines
from testbed.training import backends, lab, plan, starts
from testbed.training.config_file import STUDIES, bundled_studies, config_path
from testbed.training.fields import written as as_toml
from testbed.training.plan import Seconds, planned
from testbed.training.plan_printed import plan_sections
from testbed.training.possible import require_possible
from testbed.training.results_file import read_results
from testbed.training.starts import missing_starts
from testbed.training.study import Study, load_study
from testbed.training.sweep import record_path
from tests.training.command_worlds import FACTORS, SETTINGS, result, study_file, written
from tests.training.sweep_worlds import record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Warm starts of these tests: the user's are left alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "warm-starts"))


def sweep(*arguments):
    return run_command(app, "testbed", ["sweep", *map(str, arguments)])


def results(out):
    return {path.name: result(path) for path in sorted(out.glob("*.json"))}


def test_a_sweep_keeps_a_record_of_every_run_and_gathers_them(capsys, tmp_path):
    file, out, gathered = study_file(tmp_path), tmp_path / "records", tmp_path / "gathered.parquet"
    assert sweep(file, "--out", out, "--jobs", 1, "--results", gathered) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if not line.startswith("warm start")]
    assert printed.err == "" and lines[0].startswith("run 0/8") and re.fullmatch(r"run 8/8  \S+ s", lines[8])
    assert lines[9] == f"8 runs made, 0 found, 0 failed; records in {out}"
    study = load_study(file)
    assert set(results(out)) == {f"{cell.id}.json" for cell in study.cells()}
    assert lines[-1] == f"results in {gathered}" and "WHAT IT FOUND" in printed.out
    finals = {cell.levels["rule"]: [] for cell in study.cells()}
    for cell in study.cells():
        if cell.levels["age"] == "2":
            finals[cell.levels["rule"]].append(result(record_path(out, cell))["final"])
    for rule, values in finals.items():  # the printed reward of an arm is the mean of its two runs
        (line,) = [line for line in lines if re.match(rf"\s*{rule}\s+2\s+2\s+\d", line)]
        assert f"{sum(values) / 2:.3f} [{min(values):.3f}, {max(values):.3f}]" in line
    about, rows = read_results(gathered)
    assert about["study"] == "tiny_study" and len(rows) == 8
    assert {(row["factor_rule"], row["factor_age"], row["seed"]) for row in rows} == {
        (rule, age, seed) for rule in FACTORS["rule"] for age in FACTORS["age"] for seed in (0, 1)
    }
    assert missing_starts(cell.config for cell in study.cells()) == []
    written_at = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert sweep(file, "--out", out, "--resume", "--seeds", 1) == 0
    assert "0 runs made, 4 found, 0 failed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == written_at


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(capsys, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    file = study_file(tmp_path, base={"updates": 12})
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", "sweep", file, "--out", cut, "--jobs", "2"], start_new_session=True,
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not list(cut.glob("*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: workers hear it, too
    error = process.communicate(timeout=60)[1]
    finished = {path: path.stat().st_mtime_ns for path in cut.glob("*.json")}
    said = f"stopped with {len(finished)} of 8 runs done; the same command with --resume goes on"
    assert process.returncode == 130 and 1 <= len(finished) < 8
    assert error.splitlines()[0] == said and "Traceback" not in error
    assert sweep(file, "--out", cut, "--jobs", 1) == 2
    assert f"{len(finished)} in {cut} (go on with --resume" in capsys.readouterr().err
    assert sweep(file, "--out", cut, "--jobs", 1, "--resume") == sweep(file, "--out", whole, "--jobs", 1) == 0
    assert results(cut) == results(whole) and len(results(cut)) == 8
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


def test_runs_that_fail_are_listed_and_tried_again(capsys, monkeypatch, tmp_path):
    file, out, gathered = study_file(tmp_path), tmp_path / "records", tmp_path / "gathered.parquet"
    right = lab.cell_result

    def broken(cell):
        if cell.levels == {"rule": "cis", "age": "2"}:
            raise ZeroDivisionError("no such thing")
        return right(cell)

    monkeypatch.setattr(lab, "cell_result", broken)
    assert sweep(file, "--out", out, "--jobs", 1, "--results", gathered) == 1
    printed = capsys.readouterr()
    assert "6 runs made, 0 found, 2 failed" in printed.out and not gathered.exists()
    failed = [cell.id for cell in load_study(file).cells() if cell.levels == {"rule": "cis", "age": "2"}]
    assert printed.err.splitlines()[:3] == [
        "failed:",
        *(f"  {name}: ZeroDivisionError: no such thing" for name in sorted(failed)),
    ]
    assert "--resume tries them again" in printed.err
    monkeypatch.setattr(lab, "cell_result", right)
    assert sweep(file, "--out", out, "--jobs", 1, "--results", gathered, "--resume") == 0
    assert "2 runs made, 6 found, 0 failed" in capsys.readouterr().out and gathered.exists()


# ------------------------------------------------------------------------------------------------ plans
def seconds(*numbers):
    return Seconds(*map(float, numbers))


def fixed(seconds_of):
    """A pilot that takes no time: seconds by the settings."""
    return lambda config, *, random, cache: seconds_of(config)


def test_a_plan_runs_nothing_and_says_what_there_is_to_run(capsys, tmp_path):
    file = study_file(tmp_path, limits="One tiny task.", question="Is there a difference?", base={"warm_seed": 5})
    assert sweep(file, "--out", tmp_path / "records", "--plan", "--jobs", 1) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "records").exists() and len(missing_starts([load_study(file).cells()[0].config])) == 1
    words = " ".join(printed.split())
    for said in (
        "4 combinations x 2 seeds = 8 runs.", "Is there a difference?", "Limits: One tiny task.", "8 runs to make.",
        'age 0 system = "synchronous" 2 system = "steps_off", system_params.ahead = 2',
        "all 2 differences have one sign in 50% of such studies", "By a pilot of 4 of the combinations",
        "Warm starts that are not made yet: 2;", "a pilot wrote with random weights",
    ):  # fmt: skip
        assert said in words, said
    assert max(map(len, printed.splitlines())) <= WIDTH


def test_a_plan_counts_the_warm_start_of_every_seed_and_times_one(monkeypatch, tmp_path):
    study = load_study(study_file(tmp_path, seeds=3))
    timed = []
    monkeypatch.setattr(plan, "start_pilot", lambda config: timed.append(config.warm_seed) or seconds(7, 6, 8))
    monkeypatch.setattr(plan, "pilot", fixed(lambda _: seconds(20, 10, 30)))
    found = planned(study, tmp_path / "records", jobs=1, cache=tmp_path / "starts")
    assert (found.starts, found.starts_cpu, len(timed)) == (3, seconds(21, 18, 24), 1)
    assert found.cpu == seconds(12 * 20 + 21, 12 * 10 + 18, 12 * 30 + 24)


def test_every_seed_has_its_own_warm_start_and_all_levels_share_it(tmp_path):
    cells = load_study(study_file(tmp_path, base={"warm_seed": 5}, seeds=3)).cells()
    assert {(cell.seed, cell.config.warm_seed) for cell in cells} == {(0, 5), (1, 6), (2, 7)}


def test_a_pilot_adds_the_beginning_the_updates_and_the_evaluations(monkeypatch, tmp_path):
    config = (
        load_study(study_file(tmp_path, base={"warm_steps": 0, "updates": 50, "evaluate_every": 20})).cells()[0].config
    )
    called = []

    def timed(function):
        called.append(function.__name__)
        function()
        return 10.0 if function.__name__ == "evaluate" else float(len(called))

    now = iter([100.0, 107.0])
    monkeypatch.setattr(plan, "_timed", timed)
    monkeypatch.setattr(plan.time, "process_time", lambda: next(now))
    assert plan.pilot(config) == seconds(7 + 30 + 50 * 2.0, 7 + 30 + 50 * 1.0, 7 + 30 + 50 * 3.0)
    assert called == ["advance"] * 3 + ["evaluate"]


def test_a_plan_adds_the_runs_that_are_left(monkeypatch, tmp_path):
    study = load_study(study_file(tmp_path, base={"warm_steps": 0}))
    monkeypatch.setattr(plan, "pilot", fixed(lambda c: seconds(60, 30, 90) if c.rule == "cis" else seconds(20, 10, 30)))
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda _: {0, 1, 2})
    found = planned(study, tmp_path / "records", jobs=2)
    assert (found.runs, found.found, found.starts, found.piloted, found.recorded) == (8, 0, 0, 4, 0)
    assert (found.cpu, found.wall) == (seconds(320, 160, 480), seconds(160, 80, 240))
    alone = planned(study, tmp_path / "records", jobs=8)
    assert alone.workers == 3 and alone.wall.guess == pytest.approx(320 / 3)
    text = "\n".join(line for section in plan_sections(study, alone) for line in plain_lines(section))
    assert "5.3 min  2.7 min .. 8.0 min" in text and "This machine has 3 cores for 8 workers" in text


def test_no_sweep_is_shorter_than_its_longest_run(monkeypatch, tmp_path):
    study = load_study(study_file(tmp_path, base={"warm_steps": 0}, seeds=1))
    monkeypatch.setattr(plan, "pilot", fixed(lambda c: seconds(900, 800, 990) if c.rule == "cis" else seconds(1, 1, 1)))
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda _: set(range(64)))
    assert planned(study, tmp_path, jobs=64).wall.guess == 900


def test_records_tell_the_time_where_there_are_some(monkeypatch, tmp_path):
    study = load_study(study_file(tmp_path, base={"warm_steps": 0}))
    monkeypatch.setattr(plan, "pilot", fixed(lambda c: pytest.fail("a pilot was run")))
    for spent, cell in zip((100.0, 200.0, 300.0, 400.0, 120.0), study.cells(), strict=False):
        write_json_atomic(record_path(tmp_path, cell), record(cell, seconds=spent))
    found = planned(study, tmp_path, jobs=1)
    assert (found.found, found.recorded, found.piloted) == (5, 4, 0)
    assert found.cpu == seconds(200 + 300 + 400, 900, 900)  # the first combination's two runs are both done


def test_combinations_that_are_not_timed_lie_between_their_neighbors(monkeypatch, tmp_path):
    factors = {"updates": {str(n): {"updates": n} for n in range(10, 110, 5)}}
    study = load_study(study_file(tmp_path, base={"warm_steps": 0}, seeds=1, factors=factors))
    seen = []

    def linear(config):
        seen.append(config.updates)
        return seconds(config.updates, config.updates, config.updates)

    monkeypatch.setattr(plan, "pilot", fixed(linear))
    found = planned(study, tmp_path, jobs=1)
    assert len(seen) == plan.PILOTS == found.piloted and seen[0] == 10 and seen[-1] == 105
    assert found.cpu.guess == pytest.approx(sum(range(10, 110, 5)))


def test_a_fraction_lists_its_aliases():
    two = {name: {"-": {}, "+": {field: value}} for name, field, value in (
        ("rate", "rate", 1e-2), ("tis", "rule", "tis"), ("moe", "noise", "moe"))}  # fmt: skip
    words = (("rate", "tis", "moe"),)
    study = Study(name="half", title="half", seeds=10, base=SETTINGS, factors=two, kind="fraction", words=words)
    timed = plan.Plan(
        runs=40, found=40, jobs=2, workers=2, cpu=seconds(0, 0, 0), wall=seconds(0, 0, 0), starts=0,
        starts_cpu=seconds(0, 0, 0), piloted=0, recorded=4, random=False,
    )  # fmt: skip
    sections = {section.title: section for section in plan_sections(study, timed)}
    assert ("rate", "tis x moe") in sections["ALIASES"].rows and len(sections["ALIASES"].rows) == 6
    assert (
        "rate x tis x moe. An effect of one factor is seen together with effects of 2 factors"
        in sections["ALIASES"].remarks[0]
    )
    assert sections["COST"].says == "Nothing is left to run." and not sections["COST"].rows
    assert "in 0.2% of" in sections["WHAT IT CAN TELL"].remarks[0]  # 2^-9


# ------------------------------------------------------------------------------------------------ usage
USAGE = {
    "no file": (["nowhere.toml"], "CONFIG must be a TOML file or a bundled study; found no file nowhere.toml"),
    "no study": (["stale"], "CONFIG must be a TOML file or a bundled study; found 'stale'"),
    "settings": (["{settings}"], "`field of tiny.toml` must be one of title, question,"),
    "backend": (["{file}", "--backend", "mpi"], "`--backend` must be one of loky, dask, ray; found 'mpi'"),
    "jobs": (["{file}", "--jobs", "0"], "--jobs"),
    "seeds": (["{file}", "--seeds", "0"], "--seeds"),
    "level": (["{level}"], "found 'arael' (did you mean 'areal'?)"),
    "a study of another kind": (["{untabled}"], "`base` must be a table, { name = value }; found 3"),
    "results": (["{file}", "--results", "/dev/null/x"], "the output must be a file that can be written"),
}  # fmt: skip


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_one_sentence_and_exit_2(untyped, capsys, monkeypatch, tmp_path, case):
    monkeypatch.chdir(tmp_path)
    arguments, words = USAGE[case]
    places = {"file": study_file(tmp_path), "settings": written(tmp_path / "tiny.toml", **SETTINGS)}
    wrong = {"system": {"right": {}, "wrong": {"system": "arael"}}}
    places["level"] = written(tmp_path / "level.toml", title="t", base=SETTINGS, factors=wrong)
    places["untabled"] = written(tmp_path / "untabled.toml", title="t", base=3)
    assert sweep(*(argument.format(**places) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert words in printed.err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["afile", "/proc/records"])
def test_a_folder_of_records_is_tried_before_the_warm_starts(capsys, monkeypatch, tmp_path, out):
    monkeypatch.setattr(starts, "make_starts", lambda *_: pytest.fail("warm starts were made"))
    (tmp_path / "afile").touch()
    assert sweep(study_file(tmp_path, base={"warm_seed": 70}), "--out", tmp_path / out) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert f"records need a folder that can be written; found {tmp_path / out}: " in printed.err


def test_a_backend_that_is_not_installed_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    assert sweep(study_file(tmp_path), "--backend", "ray", "--out", tmp_path / "records") == 2
    assert "`--backend ray` needs the package ray; found none (install it with: pip install" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ bundled studies
@pytest.mark.parametrize("name", bundled_studies())
def test_a_bundled_study_can_be_run(name):
    study = load_study(config_path(name))
    require_possible([study.config(levels) for levels in study.combinations()])
    assert study.title and study.question and study.limits


def test_bundled_studies_are_part_of_an_installation():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["testbed"]
    for path in STUDIES.iterdir():
        assert any(fnmatch(str(path.relative_to(ROOT / "testbed")), pattern) for pattern in patterns), path


def test_the_smallest_study_is_three_rules_at_three_ages():
    study = load_study(config_path("smallest_staleness"))
    assert len(study.cells()) == 45
    ages = {cell.levels["staleness"]: (cell.config.system, dict(cell.config.system_params)) for cell in study.cells()}
    assert ages == {"0": ("synchronous", {}), "2": ("steps_off", {"ahead": 2}), "8": ("steps_off", {"ahead": 8})}
    assert {cell.levels["rule"] for cell in study.cells()} == {"none", "exact", "ppo_clip"}


def test_settings_are_written_as_toml():
    values = {"rule": "tis", "rate": 1e-5, "system_params": {"ahead": 4, "order": "fifo"}, "cached": True}
    assert tomllib.loads(as_toml(values).replace(", ", "\n")) == values
