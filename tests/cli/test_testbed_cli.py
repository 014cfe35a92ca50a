"""The command line as a user meets it: what it prints in a pipe and on a terminal, and how it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.cli import app
from testbed.core.command import run_command
from testbed.sample_data import partial_rollouts_path

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b"
TITLES = (
    "BATCH",
    "CHECKS",
    "TOKEN GAPS",
    "DISPLACEMENT BY CONFIDENCE",
    "E[w] = 1?",
    "PRODUCTS THROUGH EACH SEGMENT",
    "RULES",
    "ADVISED CAP",
    "ADVISED REPLAY SHARE",
    "WHICH READING OF SPIRE",
)


def run(*arguments, **options):
    command = [sys.executable, "-m", "testbed", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100, **options)


def test_diagnose_in_a_pipe_has_no_control_codes_and_all_sections(tmp_path):
    done = run("diagnose", "sample", "--json", tmp_path / "record.json", env={**os.environ, "FORCE_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert ESCAPE not in done.stdout
    assert [title for title in TITLES if title not in done.stdout] == []
    assert "128 responses in 32 groups, 4224 tokens" in done.stdout
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["provenance"]["seed"] == 0
    assert record["result"]["file"] == "smollm2_partial_rollouts.parquet"
    assert record["result"]["columns"] == {"target": "logp_target", "behavior": "logp_behavior"}
    assert len(record["result"]["gaps"]) == 9


def test_on_a_terminal_the_tables_are_drawn_and_fit():
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "testbed", "rules"]
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    writer = subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower, env=env)
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
    assert writer.wait(timeout=60) == 0
    text = b"".join(chunks).decode()
    assert ESCAPE in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "───" in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "…" not in plain


def test_the_sample_path_can_be_given_to_diagnose(capsys):
    assert run_command(app, "testbed", ["sample"]) == 0
    path = capsys.readouterr().out.strip()
    assert Path(path) == partial_rollouts_path()
    assert run_command(app, "testbed", ["diagnose", path]) == 0
    by_path = capsys.readouterr().out
    assert run_command(app, "testbed", ["diagnose", "sample"]) == 0
    assert capsys.readouterr().out == by_path


def test_columns_and_seed_are_taken_from_the_options(capsys, tmp_path):
    out = tmp_path / "record.json"
    arguments = ["diagnose", "sample", "--behavior", "logp_v0_f32", "--target", "logp_proximal", "--seed", "5"]
    assert run_command(app, "testbed", [*arguments, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["result"]["columns"] == {"target": "logp_proximal", "behavior": "logp_v0_f32"}
    assert record["provenance"]["seed"] == 5
    total = next(g for g in record["result"]["gaps"] if g["gap"] == "total" and g["segment"] == 0)
    assert total["sd"] == 0.0  # in segment 0 both columns are the same policy's
    assert "FAULT zero_variance" in capsys.readouterr().out


def test_one_column_for_both_policies_is_refused(capsys):
    assert run_command(app, "testbed", ["diagnose", "sample", "--target", "logp_behavior"]) != 0
    assert "target and behavior must be two columns" in capsys.readouterr().err


def test_the_report_and_the_record_tell_the_detectors_rates(capsys, tmp_path):
    out = tmp_path / "record.json"
    assert run_command(app, "testbed", ["diagnose", "sample", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "detectors: power" in printed and max(map(len, printed.splitlines())) <= 80
    rates = {f["check"]: f["rates"] for f in json.loads(out.read_text())["result"]["faults"]}
    assert rates["shift_by_one"]["false_alarms"] == {
        "accused": 0, "accused_by_any": 0, "dumps": 2000, "at_most": pytest.approx(0.0015, rel=0.01)
    }  # fmt: skip


def test_the_page_holds_every_section_and_quiet_prints_nothing(capsys, tmp_path):
    page = tmp_path / "new folder" / "report.html"
    assert run_command(app, "testbed", ["diagnose", "sample", "--html", str(page), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    text = page.read_text()
    assert [title for title in TITLES if f"<h2>{title}" not in text] == []
    assert "width=device-width" in text
    assert "http" not in text and "<script" not in text and "src=" not in text
    assert text.count("<table>") == text.count('<div class="wide">') == 8  # each scrolls by itself on a small screen


def test_costs_are_taken_from_the_options(capsys, tmp_path):
    out = tmp_path / "record.json"
    assert run_command(app, "testbed", ["diagnose", "sample", "--cost-replay", "0", "--json", str(out)]) == 0
    replay = json.loads(out.read_text())["result"]["advice"]["replay"]
    assert (replay["cost_fresh"], replay["cost_replay"], replay["regime"]) == (1.0, 0.0, "all")
    assert "Replay is worth more than fresh responses at these costs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose"], "Missing argument"),
        (["diagnose", "nowhere.parquet"], "found no such file"),
        (["diagnose", "sample", "--target", "logp_x"], "needs a column `logp_x` (choose with --target); found the columns"),
        (["diagnose", "sample", "--target", "behavior"], "`behavior` must hold numbers; found 'v0_bf16'"),
        (["diagnose", "sample", "--seed", "x"], "Invalid value for '--seed'"),
        (["diagnose", "sample", "--html", "/dev/null/x.html"], "the output must be a file that can be written"),
        (["diagnose", "sample", "--format", "very"], "the format is unknown; found 'very' (one of testbed, verl, trl, areal"),
        (["diagnose", "sample", "--format", "verl"], "format verl needs `rollout_log_probs`, `old_log_probs`, `response_mask`"),
        (["diagnose", "sample", "--cost-fresh", "0"], "`cost_fresh` must be finite and > 0; found 0"),
        (["diagnose", "sample", "--cost-replay", "-1"], "`cost_replay` must be finite and >= 0; found -1"),
        (["rules", "ice_pop"], "did you mean icepop?"),
        (["rules", "sequence"], "did you mean sequence_product"),
        (["rules", "tis", "--json", "/dev/null/x.json"], "the output must be a file that can be written"),
        (["engines", "nowhere.npz"], "found no such file: 'nowhere.npz' (check the path)"),
        (["engines", "tests"], "found a folder: 'tests'"),
        (["nothing"], "nothing"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_sentence_and_exit_2(capsys, arguments, words):
    assert run_command(app, "testbed", arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("testbed: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_damaged_file_through_the_real_command(tmp_path):
    path = tmp_path / "cut.parquet"
    path.write_bytes(partial_rollouts_path().read_bytes()[:5000])
    done = run("diagnose", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("testbed: 'cut.parquet' must be a readable parquet file; found ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_130_and_no_traceback():
    code = (
        "import sys, time, testbed.diagnosis.dump as dump\n"
        "dump.read_dump = lambda *a, **k: (print('reading', flush=True), time.sleep(60))\n"
        "sys.argv = ['testbed', 'diagnose', 'sample']\n"
        "from testbed.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert "Traceback" not in process.stderr.read()


def test_rules_as_records(capsys, tmp_path):
    out = tmp_path / "rules.json"
    assert run_command(app, "testbed", ["rules", "tis", "--json", str(out)]) == 0
    assert "formula: min(rho_t, cap)" in capsys.readouterr().out
    assert json.loads(out.read_text())["result"]["rules"][0]["parameters"] == {"cap": 2.0}
