"""The theory command line: exit statuses, records, one sentence for bad usage."""

import json
import subprocess
import sys

import pytest

from testbed.core.command import run_command
from theory.cli import app


def run(capsys, *arguments):
    status = run_command(app, "theory", list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_verify_writes_the_contract(capsys, tmp_path):
    path = tmp_path / "v.json"
    status, out, _ = run(capsys, "verify", "S1", "--json", str(path))
    assert status == 0
    assert out.startswith("S1   identity")
    record = json.loads(path.read_text())
    assert {
        "version",
        "git",
        "dirty",
        "python",
        "torch",
        "numpy",
        "sympy",
        "platform",
        "seed",
        "started",
        "seconds",
    } <= set(record["header"])
    (verdict,) = record["verdicts"]
    assert {
        "id",
        "kind",
        "title",
        "source",
        "reading",
        "holds",
        "lhs",
        "rhs",
        "gap",
        "tolerance",
        "instances",
        "mutants",
        "sampled",
        "seconds",
    } <= set(verdict)
    assert all({"name", "killed", "margin"} <= set(m) for m in verdict["mutants"])
    assert {"n", "alpha", "power"} <= set(verdict["sampled"])


def test_no_mutants(capsys):
    status, out, _ = run(capsys, "verify", "S1", "--no-mutants")
    assert status == 0
    assert "mutants not run" in out


def test_break_prints_refuted_and_exits_1(capsys, tmp_path):
    path = tmp_path / "m.json"
    status, out, _ = run(capsys, "break", "S2:labels_shifted", "--json", str(path))
    assert status == 1
    assert out.startswith("REFUTED S2:labels_shifted (bug) margin 0.9")
    (mutant,) = json.loads(path.read_text())["mutants"]
    assert mutant["killed"]
    assert mutant["margin"] > mutant["required"]


def test_a_survivor_exits_3(capsys, monkeypatch):
    from contextlib import nullcontext

    from theory import bugs

    monkeypatch.setattr("theory.catalogue.find", _with_harmless_bug(nullcontext))
    monkeypatch.setattr("theory.run.find", _with_harmless_bug(nullcontext))
    status, out, _ = run(capsys, "break", "S2:labels_shifted")
    assert status == 3
    assert "SURVIVED S2:labels_shifted" in out
    assert bugs.labels_shifted is not nullcontext


def _with_harmless_bug(plant):
    from dataclasses import replace

    from theory.catalogue import find as right

    def find(theorem_id):
        theorem = right(theorem_id)
        return replace(theorem, mutants=tuple(replace(m, plant=plant) for m in theorem.mutants))

    return find


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "Q7"], "no theorem has this id; found 'Q7' (nearest:"),
        (["show", "S99"], "no theorem has this id"),
        (["show", "V8"], "planned and not decided yet; found V8 (decided so far: sections S,"),
        (["verify", "S1", "--json", "/proc/v.json"], "must be a file that can be written; found /proc/v.json"),
        (["break", "S1", "--json", "/proc/v.json"], "must be a file that can be written"),
        (["records", "--out", "/proc/records"], "must be a file that can be written"),
        (["break"], "give either ID[:MUTANT] or --all; found neither"),
        (["break", "S2", "--all"], "found both"),
        (["break", "S2:nonsense"], "S2 has no mutant of this name; found 'nonsense' (it has support_violated"),
        (["diff", "nowhere.json", "nothing.json"], "the verdict file must exist; found nowhere.json"),
        (["frobnicate"], "No such command"),
        (["verify", "--jobs", "0"], "--jobs"),
    ],
)
def test_bad_usage_is_one_sentence_and_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


def test_show_puts_hypotheses_first(capsys):
    status, out, _ = run(capsys, "show", "S2")
    assert status == 0
    assert out.index("Hypotheses") < out.index("Statement") < out.index("Derivation") < out.index("every step follows")
    assert "reading" in out
    status, latex, _ = run(capsys, "show", "S2", "--latex")
    assert status == 0
    assert r"\nabla J" in latex


def test_diff_names_what_changed(capsys, tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run(capsys, "verify", "S1", "--json", str(a))
    assert run(capsys, "diff", str(a), str(a)) == (0, "no verdict changed\n", "")
    record = json.loads(a.read_text())
    record["verdicts"][0]["mutants"][0]["killed"] = False
    record["verdicts"][0]["holds"] = False
    b.write_text(json.dumps(record))
    status, out, _ = run(capsys, "diff", str(a), str(b))
    assert status == 1
    assert "S1: holds True -> False" in out
    assert "S1:boundary_peeks_at_token: killed True -> False" in out


def test_matrix_notices_each_bug(capsys):
    status, out, _ = run(capsys, "matrix", "S1", "S2")
    assert status == 0
    rows = [line for line in out.splitlines() if ":" in line and "X" in line.split()]
    assert len(rows) >= 5


def test_interrupt_keeps_what_is_finished(capsys, tmp_path, monkeypatch):
    from theory import run as runner

    def stop_after_one(function, calls, jobs):
        yield function(*calls[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_in_order", stop_after_one)
    path = tmp_path / "v.json"
    status, _, err = run(capsys, "verify", "S1", "S2", "--json", str(path))
    assert status == 130
    assert "kept" in err
    record = json.loads(path.read_text())
    assert [v["id"] for v in record["verdicts"]] == ["S1"]
    assert record["header"]["complete"] is False


def test_parallel_gives_the_same_verdicts(tmp_path):
    paths = [tmp_path / f"{jobs}.json" for jobs in (1, 2)]
    for jobs, path in zip((1, 2), paths, strict=True):
        command = [sys.executable, "-m", "theory", "verify", "S1", "S2", "--jobs", str(jobs), "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads(p.read_text())["verdicts"] for p in paths)
    for a, b in zip(one, two, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_a_reader_that_stops_loses_nothing(tmp_path):
    path = tmp_path / "v.json"
    command = f"{sys.executable} -m theory verify S1 S17 --no-mutants --jobs 1 --json {path} | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("S1 ")
    assert "Traceback" not in done.stderr
    assert [v["id"] for v in json.loads(path.read_text())["verdicts"]] == ["S1", "S17"]


def test_an_id_given_twice_is_decided_once(capsys):
    status, out, _ = run(capsys, "verify", "S17", "S17", "--no-mutants")
    assert status == 0
    assert "1 of 1 theorems" in out
