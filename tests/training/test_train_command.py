"""The command that trains: what it prints, keeps and refuses, and that a run gone on with is the run never interrupted."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from testbed.cli import app
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.policies.transformer import Transformer
from testbed.training import lab, progress
from testbed.training.config_file import config_path, load_config
from testbed.training.grpo_config import GRPOConfig
from testbed.training.possible import require_possible
from tests.training.command_worlds import result, settings_file, study_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Warm starts of these tests: the user's are left alone."""
    cache = tmp_path_factory.getbasetemp() / "warm-starts"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def train(*arguments):
    return run_command(app, "testbed", ["train", *map(str, arguments)])


def test_a_run_prints_lines_and_leaves_weights_and_a_record(capsys, tmp_path):
    out, copy = tmp_path / "run", tmp_path / "copy.json"
    assert train(settings_file(tmp_path), "--seed", 3, "--out", out, "--json", copy) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if not line.startswith("warm start")]
    assert printed.err == "" and len(lines) == 7
    number = r"\d\.\d{3}"
    assert re.fullmatch(
        rf"update 1/3  reward {number}  evaluation {number}  max \|log k\| \S+  acted \S+%  \S+ s", lines[0]
    )
    assert re.fullmatch(r"update 2/3  .*  \S+ s, \S+ s left", lines[1])
    assert lines[2].startswith("update 3/3  reward ") and "left" not in lines[2]
    assert re.fullmatch(rf"reward {number} -> {number} \(best {number}\), (no collapse|collapsed)", lines[3])
    assert lines[4] == "finished: 3 updates (reward at the end: mean of the last three evaluations)"
    assert lines[5].startswith("staleness 0 updates on average, 0 at most; acted on ")
    kept = json.loads((out / "record.json").read_text())
    assert kept == json.loads(copy.read_text()) and kept["provenance"]["seed"] == kept["result"]["seed"] == 3
    assert GRPOConfig.of(kept["result"]["config"]) == load_config(tmp_path / "tiny.toml")
    assert f"-> {kept['result']['final']:.3f} (best {kept['result']['best']:.3f})" in lines[3]
    assert sorted(path.name for path in out.iterdir()) == ["record.json", "weights.npz"]
    assert Transformer.load(out / "weights.npz").config.width == 8


def test_the_same_seed_leaves_the_same_record_and_another_does_not(tmp_path):
    file = settings_file(tmp_path)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert train(file, "--seed", seed, "--out", tmp_path / name) == 0
    a, b, c = (result(tmp_path / name / "record.json") for name in "abc")
    assert a == b and a["curve"] != c["curve"]


def test_settings_have_a_folder_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = settings_file(tmp_path, updates=1)
    assert train(file) == train(file) == train(file, "--set", "rule=none") == train(file, "--seed", 1) == 0
    folders = sorted(path.name for path in (tmp_path / "out" / "train").iterdir())
    assert len(folders) == 3 and all(re.fullmatch(r"tiny-s[01]-[0-9a-f]{8}", name) for name in folders)


# ------------------------------------------------------------------------------------------------ to be continued
def test_ctrl_c_leaves_a_checkpoint_and_the_resumed_record_is_that_of_a_run_never_stopped(tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = ["train", settings_file(tmp_path, updates=40, system="areal", minibatches=2, noise="moe")]
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", *command, "--out", cut],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with process:
        while not (line := process.stdout.readline()).startswith("update"):
            assert line.startswith("warm start") or process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        error = process.stderr.read()
    stopped = re.match(r"stopped after update (\d+) of 40; --resume goes on from here\n", error)
    assert stopped and 4 <= int(stopped[1]) < 40 and "Traceback" not in error
    assert [path.name for path in cut.iterdir()] == ["checkpoint.pt"]
    assert train(*command[1:], "--out", cut) == 2
    assert "a run under way" in capsys.readouterr().err
    assert train(*command[1:], "--out", cut, "--resume") == 0
    assert int(re.search(r"^update (\d+)/40", capsys.readouterr().out, re.MULTILINE)[1]) > int(stopped[1])  # it went on
    assert train(*command[1:], "--out", whole) == 0
    assert result(cut / "record.json") == result(whole / "record.json")
    vectors = [Transformer.load(folder / "weights.npz").vector() for folder in (cut, whole)]
    assert torch.equal(*vectors) and result(cut / "record.json")["updates"] == 40
    assert sorted(path.name for path in cut.iterdir()) == ["record.json", "weights.npz"]


def test_ctrl_c_during_the_warm_start_ends_at_once(capsys, monkeypatch, tmp_path):
    right, reached = lab.warm_started, []

    def pressed(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        reached.append("a warm start that went on")
        return right(*arguments, **options)

    monkeypatch.setattr(lab, "warm_started", pressed)
    assert train(settings_file(tmp_path), "--out", tmp_path / "run") == 130
    assert reached == [] and list((tmp_path / "run").iterdir()) == []
    assert "stopped before the first update: there is nothing to go on from" in capsys.readouterr().err


def test_a_run_that_has_ended_is_not_resumed(capsys, tmp_path):
    out, file = tmp_path / "run", settings_file(tmp_path)
    assert train(file, "--out", out) == 0
    before = (out / "record.json").read_bytes()
    assert train(file, "--out", out, "--resume") == 2
    assert f"must be under way; found {out / 'record.json'} of one that has ended" in capsys.readouterr().err
    assert (out / "record.json").read_bytes() == before
    assert train(file, "--out", tmp_path / "none", "--resume") == 2
    assert "must have left a checkpoint" in capsys.readouterr().err


def test_a_study_without_settings_is_no_config(capsys, tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('title = "x"\n')
    assert train(file, "--out", tmp_path / "run") == 2
    assert "a study must have [base] or [factors]; found only title in" in capsys.readouterr().err


def test_another_runs_checkpoint_is_refused(capsys, monkeypatch, tmp_path):
    out, file = tmp_path / "run", settings_file(tmp_path)
    lab.train_grpo(load_config(file), 0, checkpoint=out.with_name("checkpoint.pt"), asked=lambda: True)
    out.mkdir()
    (tmp_path / "checkpoint.pt").rename(out / "checkpoint.pt")
    for options, words in ((["--seed", "1"], "another seed"), (["--set", "rule=none"], "another config")):
        assert train(file, "--out", out, "--resume", *options) == 2
        assert words in capsys.readouterr().err
    assert train(file, "--out", out, "--resume") == 0


def test_divergence_is_a_result(capsys, tmp_path):
    assert train(settings_file(tmp_path, updates=9, rate=1e30, rule="none"), "--out", tmp_path / "run") == 0
    printed = capsys.readouterr().out
    assert "-> 0.000 (best" in printed and "), collapsed" in printed
    assert re.search(r"^diverged: .* not finite at update \d, of 9 planned$", printed, re.MULTILINE)
    assert result(tmp_path / "run" / "record.json")["outcome"] == "diverged"


# ------------------------------------------------------------------------------------------------ which settings
def test_changes_are_read_as_toml_or_bare_words(tmp_path):
    file = settings_file(tmp_path)
    changes = ["rule=cis", "rate = 1e-3", "system=steps_off", "system_params.ahead=4", "clip_norm=none", 'noise="moe"']
    config = load_config(file, [*changes, "task_params.modulus=7", "rate=2e-3"])
    assert (config.rule, config.rate, config.system, config.noise) == ("cis", 2e-3, "steps_off", "moe")
    assert config.system_params == {"ahead": 4} and config.clip_norm is None
    assert config.task_params == {"terms": 1, "modulus": 7} and config.updates == 3


def test_a_study_gives_its_base_and_its_levels_by_name(tmp_path):
    file = study_file(tmp_path)
    assert load_config(file).rule == "tis"
    config = load_config(file, ["age=2", "rule=cis", "updates=5"])
    assert (config.system, config.system_params, config.rule, config.updates) == ("steps_off", {"ahead": 2}, "cis", 5)
    assert load_config(file, ["rule=mis"]).rule == "mis"  # no level, but a field
    with pytest.raises(InputError, match="`--set age` must be one of 0, 2; found '3'"):
        load_config(file, ["age=3"])


def test_engines_are_float32_unless_they_say_otherwise(tmp_path):
    run = lab.run_of(load_config(settings_file(tmp_path, warm_steps=0), ["sampler.weights=int8"]), 0)
    numerics = run.engines.sampler_numerics
    assert (numerics.dtype, numerics.weights) == ("float32", "int8")


USAGE = {
    "no file": (["nowhere.toml"], "CONFIG must be a TOML file or a bundled study; found no file nowhere.toml"),
    "no study": (["smallest_stalenes"], "did you mean smallest_staleness?"),
    "no toml": (["{broken}"], "CONFIG must be a TOML file; found"),
    "a folder": (["{folder}"], "CONFIG must be a TOML file or a bundled study"),
    "field": (["{file}", "--set", "updats=4"], "fields that exist; found `updats` = 4 (did you mean `updates`?)"),
    "no value": (["{file}", "--set", "updates"], "`--set` must be FIELD=VALUE; found 'updates'"),
    "number": (["{file}", "--set", "updates=0"], "`updates` must be a whole number >= 1; found 0"),
    "word": (["{file}", "--set", "rate=fast"], "`rate` must be a finite number > 0; found 'fast'"),
    "rule": (["{file}", "--set", "rule=tsi"], "`rule` must be one of none, exact, tis,"),
    "rule parameter": (["{file}", "--set", "rule_params.capp=2"], "`rule_params of tis` must be one of cap; found 'capp'"),
    "rule value": (["{file}", "--set", "rule_params.cap=-1"], "`cap` must be"),
    "rule kind": (["{file}", "--set", "rule_params.cap=two"], "two"),
    "rule that needs more": (["{file}", "--set", "rule=sis"], "found 'sis', which needs `next_token`"),
    "task": (["{file}", "--set", "task=divsion"], "`task` must be one of addition,"),
    "task parameter": (["{file}", "--set", "task_params.digits=3"], "one of terms, least_terms,"),
    "too few prompts": (["{file}", "--set", "task_params.base=2"], "at least 4 problems"),
    "width": (["{file}", "--set", "width=9"], "`width` must be a multiple of 2 * heads; found 9 for 2 heads"),
    "system": (["{file}", "--set", "system=arael"], "found 'arael' (did you mean 'areal'?)"),
    "system value": (["{file}", "--set", "system_params.ahead=-1"], "`ahead` must be a whole number >= 0; found -1"),
    "system kind": (["{file}", "--set", "system_params.update_seconds=long"], "`update_seconds` must be a number; found 'long'"),
    "system objective": (
        ["{file}", "--set", "system=areal", "--set", "system_params.objective=decoupled"],
        "must hold values that a run reads; found objective = 'decoupled' (set `rule`, whose loss a run has)",
    ),
    "numerics": (["{file}", "--set", "sampler.dtype=float8"], "`dtype` must be one of float64, float32, bfloat16, float16"),
    "table": (["{file}", "--set", "sampler=float32"], "`sampler` must be a table"),
    "noise": (["{file}", "--set", "noise=mow"], "`noise` must be one of , gaussian"),
    "nothing to resume": (["{file}", "--resume"], "a run to resume must have left a checkpoint"),
    "out": (["{file}", "--out", "/dev/null/x"], "the output must be a file that can be written"),
    "seed": (["{file}", "--seed", "-1"], "--seed"),
    "option": (["{file}", "--speed"], "--speed"),
}  # fmt: skip


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_one_sentence_and_exit_2(untyped, capsys, monkeypatch, tmp_path, case):
    monkeypatch.chdir(tmp_path)
    arguments, words = USAGE[case]
    places = {"file": settings_file(tmp_path), "folder": tmp_path, "broken": tmp_path / "broken.toml"}
    places["broken"].write_text("updates = = 3")
    assert train(*(argument.format(**places) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert words in printed.err


def test_what_can_be_run_is_known_before_a_warm_start(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "warm_started", lambda *_, **__: pytest.fail("a warm start was made"))
    with pytest.raises(InputError):
        require_possible([load_config(settings_file(tmp_path), ["system=areall"])])
    for push in ("system=pipeline_rl", "system=areal"):
        changes = [push, "system_params.push=stale_cache"]
        with pytest.raises(
            InputError, match=r"needs a sampler that keeps keys and values; found `sampler.cached` = False"
        ):
            require_possible([load_config(settings_file(tmp_path), [*changes, "sampler.cached=false"])])
        require_possible([load_config(settings_file(tmp_path), [*changes, "trainer.cached=false"])])
    assert train(settings_file(tmp_path), "--set", "rule=sis", "--out", tmp_path / "run") == 2


# ------------------------------------------------------------------------------------------------ progress
def test_on_a_terminal_there_is_a_bar_and_no_plain_lines(tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "testbed", "train", settings_file(tmp_path, updates=20), "--out", tmp_path / "run"]
    env = {**os.environ, "COLUMNS": "120", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = b"".join(chunks).decode()
    assert "\x1b[" in text and "━" in text and "/20" in text
    assert "update 20/20  reward" not in text and "finished: 20 updates" in text


def test_the_remaining_time_forgets_what_came_before_the_first_unit(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    with progress.counted_progress("update", 100) as report:
        for count in range(1, 101):  # a warm start of 98 seconds, then 2 seconds for each update
            now[0] = 98 + 2 * count
            report(count, "")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["update 1/100  1.7 min", "update 10/100  2.0 min, 3.0 min left"]
    assert lines[-1] == "update 100/100  298.0 s" and len(lines) == 11


def test_a_long_wait_is_told_anyway(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    with progress.counted_progress("run", 1000) as report:
        for count in range(1, 4):
            now[0] = 45.0 * count
            report(count, "")
    assert capsys.readouterr().out.splitlines() == ["run 2/1000  1.5 min, 12.5 h left"]  # of 45 s each


def test_bundled_studies_are_found_by_name():
    assert load_config(config_path("smallest_staleness")).task == "parity"
