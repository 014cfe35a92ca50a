"""Each figure of a record: what it draws is the record, and equal records give equal files."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from figures.__main__ import available, draw_one, read_records
from figures.bias_readings import LOOK
from testbed.core.records import RunRecord
from tests.figures.test_laboratory_figures import LABORATORY
from tests.figures.test_mismatch_training_figures import SCRIPTS as TRAINING
from tests.figures.test_reproduced_figures import REPRODUCED
from theory.records import record

NAMES = (
    "bias_readings", "bound_vs_moment", "cap_vs_confidence", "displacement_tails", "displacement_vs_confidence", "equilibrium",
    "flips", "mse_vs_cap", "mse_vs_share", "truncation_bias",
)  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for name in NAMES:
        RunRecord(result=record(name), provenance={}).save(folder / f"{name}.json")
    return folder


def test_every_figure_is_tested():
    assert set(available()) == {*NAMES, *REPRODUCED, *LABORATORY, *TRAINING, "mutant_margins"}


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_drawn_are_the_record(name, records, tmp_path):
    written = draw_one(name, [records], tmp_path)
    assert {path.name for path in written} == {f"{name}.{kind}" for kind in ("pdf", "png", "json")}
    assert (
        json.loads((tmp_path / f"{name}.json").read_text()) == read_records((f"{name}.json",), [records])[0]["result"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_equal_records_give_equal_files(name, records, tmp_path):
    for folder in ("a", "b"):
        command = [sys.executable, "-m", "figures", name, "--records", str(records), "--out", str(tmp_path / folder)]
        subprocess.run(command, check=True, timeout=100, capture_output=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert files[f"{name}.png"].startswith(b"\x89PNG")
    assert len(files[f"{name}.png"]) < 100_000


def test_readings_are_those_of_the_record(records):
    (content,) = read_records(("bias_readings.json",), [records])
    assert set(LOOK) == set(content["result"]["relative_bias"])


def test_shares_have_every_regime_and_what_makes_it():
    found = record("mse_vs_share")
    regimes = {case["regime"]: case for case in found["regimes"]}
    assert set(regimes) == {"interior", "none", "all", "tie", "cost_bound", "pool_bound"}
    for case in regimes.values():
        allowed = [v for a, v in zip(found["share"], case["mse"], strict=True) if case["low"] <= a <= case["high"]]
        assert case["best"]["mse"] <= min(allowed) * (1 + 1e-12)
        assert (sum(value > 0 for value in case["multipliers"].values()) == 0) == (case["regime"] == "interior")
    tie = regimes["tie"]
    assert tie["worst"]["mse"] >= max(tie["mse"]) * (1 - 1e-12)
    assert tie["best"]["mse"] == pytest.approx(tie["other"]["mse"], rel=1e-12)
    assert regimes["interior"]["worst"] is None


def test_equilibria_lie_on_the_diagonal_and_leaps_do_not():
    cases = {case["case"]: case for case in record("equilibrium")["cases"]}
    assert [len(cases[name]["equilibria"]) for name in ("one", "none", "two", "three")] == [1, 0, 2, 3]
    assert cases["one"]["uniqueness_guaranteed"]
    for case in cases.values():
        assert len(case["pieces"]) == len(case["jumps"]) + 1
        assert [a for piece in case["pieces"] for a in piece["share"]] == case["share"]
        for before, after in zip(case["pieces"], case["pieces"][1:], strict=False):
            assert before["response"][-1] - before["share"][-1] > 0.1
            assert after["share"][0] - after["response"][0] > 0.1
