"""The warm start as a command: what it prints, what it writes, how it stops and goes on, and that it learns to add."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from testbed.cli import app
from testbed.core.command import run_command
from testbed.policies.transformer import Transformer
from testbed.training.pretrain import checkpoint_path
from testbed.training.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
TINY = ["pretrain", "--max-operand", "9", "--batch", "16", "--threads", "1"]


def weights(path):
    return Transformer.load(path).vector()


def test_a_tiny_run_prints_lines_and_writes_weights_and_a_record(capsys, tmp_path):
    out, record = tmp_path / "w.npz", tmp_path / "r.json"
    command = [*TINY, "--steps", "20", "--out", str(out), "--json", str(record), "--seed", "3"]
    assert run_command(app, "testbed", command) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert printed.err == "" and len(lines) == 12
    assert re.fullmatch(r"step 2/20  loss \d\.\d{4}  \d+\.\d s", lines[0])
    share = re.match(r"exact match on 25 held-out problems: (\d+\.\d) % \((\d+) right, greedy\)", lines[10])
    kept = json.loads(record.read_text())
    assert kept["provenance"]["seed"] == 3
    assert kept["result"]["exact_match"] == int(share[2]) / 25 == pytest.approx(float(share[1]) / 100)
    assert kept["result"]["recipe"]["steps"] == 20 and kept["result"]["recipe"]["batch"] == 16
    assert kept["result"]["model"]["parameters"] == len(weights(out))
    assert not checkpoint_path(out).exists()


def test_experts_and_seeds_make_other_models(tmp_path):
    paths = {name: tmp_path / f"{name}.npz" for name in ("a", "b", "c", "d")}
    for name, options in {"a": [], "b": [], "c": ["--seed", "1"], "d": ["--experts", "4"]}.items():
        assert run_command(app, "testbed", [*TINY, "--steps", "2", "--out", str(paths[name]), *options]) == 0
    a, b, c = (weights(paths[name]) for name in "abc")
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert Transformer.load(paths["d"]).config.experts == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume"], "a run to resume is named by `out`"),
        (["--resume", "--out", "{}/w.npz"], "a run to resume must have left a checkpoint"),
        (["--out", "/dev/null/w.npz"], "the output must be a file that can be written"),
        (["--steps", "0"], "`steps` must be >= 1"),
        (["--schedule", "linear"], "`schedule` must be 'cosine' or 'constant'"),
        (["--threads", "0"], "--threads"),
        (["--batch", "80"], "a batch of 80 needs as many problems; found 75 (set `batch` (--batch) to at most 75"),
        (
            ["--max-operand", "0"],
            "must have at least 4 problems, a quarter of which is held out; found 1, with operands 0..0",
        ),
        (["--max-operand", "1000"], "must have at most 1,000,000 problems; found 1,002,001, with operands 0..1000"),
        (["--max-operand", "9" * 17], "(set --max-operand to at most 999)"),
        (["--experts", "1"], "`experts` must be 0 or at least 2"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(untyped, capsys, tmp_path, options, words):
    options = [option.format(tmp_path) for option in options]
    assert run_command(app, "testbed", [*TINY, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert words in printed.err


def test_the_help_shows_the_recipe(capsys):
    assert run_command(app, "testbed", ["pretrain", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in ("steps", "batch", "rate", "schedule"):
        assert re.search(rf"--{name} [^\[]*\[default: {getattr(Recipe(), name)}\]", text), name


def test_a_run_without_out_says_that_nothing_is_kept(capsys, tmp_path):
    said = "no weights were kept: --out PATH writes them"
    assert run_command(app, "testbed", [*TINY, "--steps", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert run_command(app, "testbed", [*TINY, "--steps", "1", "--out", str(tmp_path / "w.npz")]) == 0
    assert said not in capsys.readouterr().out


def test_ctrl_c_leaves_a_checkpoint_and_the_resumed_run_has_the_same_bits(tmp_path):
    whole, cut = tmp_path / "whole.npz", tmp_path / "cut.npz"
    command = [*TINY, "--steps", "200"]
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", *command, "--out", cut],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with process:
        assert process.stdout.readline().startswith("step 20/200")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        error = process.stderr.read()
    assert re.match(r"stopped after step \d+ of 200; --resume goes on from here\n", error)
    assert "Traceback" not in error
    assert checkpoint_path(cut).exists() and not cut.exists()
    for options in (["--out", whole], ["--out", cut, "--resume"]):
        assert run_command(app, "testbed", [*command, *map(str, options)]) == 0
    assert torch.equal(weights(cut), weights(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.npz", "whole.npz"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("experts", [0, 8])
def test_the_default_run_learns_to_add(tmp_path, experts):
    record = tmp_path / "r.json"
    assert run_command(app, "testbed", ["pretrain", "--experts", str(experts), "--json", str(record)]) == 0
    result = json.loads(record.read_text())["result"]
    assert result["held_out"] == 500 and result["exact_match"] >= 0.8
