"""The cost of a correction: phases are timed soundly, and statements about them follow from the seconds."""

from __future__ import annotations

import json

import pytest
import torch

from paper_repro import cis_cost, cost_phases
from paper_repro.__main__ import app
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.core.errors import InputError

TINY = Setting(scale="tiny")


def size(weights=1e-4, gap=0.0):
    """One size with the given seconds of arithmetic, CIS's longer by a gap."""
    arms_ = {arm: {"Weights": [weights] * 5, "Train step": [1.0] * 5} for arm in cost_phases.ARMS}
    arms_["CIS, odds"]["Weights"] = [weights + gap] * 5
    shared = {"Rollout": [0.5] * 5, "Rescore": [0.25] * 5, "Advantage": [0.001] * 5}
    return {
        "size": "s",
        "shared": shared,
        "arms": arms_,
        "parameters": 1,
        "responses": 1,
        "length": 2.0,
        "load": [0, 0],
    }


@pytest.mark.parametrize(
    ("weights", "gap", "free", "same"),
    [(1e-4, 0.0, "holds", "holds"), (0.1, 0.0, "does not hold", "holds"), (1e-4, 0.01, "holds", "does not hold")],
)
def test_statements_about_cost(weights, gap, free, same):
    assert [check.word for check in cis_cost.checks_of(size(weights, gap))] == [free, same]


def test_a_step_without_correction_scores_nothing_again():
    one = size()
    assert cis_cost.step_seconds(one, "TIS")[0] - cis_cost.step_seconds(one, "No correction")[0] == pytest.approx(0.25)


def test_by_the_token_the_papers_corrections_cost_a_quarter():
    check = cis_cost.by_token()
    assert check.holds is False and "TIS +28%" in check.found
    assert check.statement.startswith(cis_cost.OURS)  # a division of the paper's numbers is no statement of the paper


def test_what_is_ours_in_the_papers_table_says_so():
    rows = cis_cost.printed_rows()
    assert (
        set(rows[0]) - {"table", "arm"} - set(cis_cost.PRINTED) == {cis_cost.PER_TOKEN} and "ours" in cis_cost.PER_TOKEN
    )
    assert {row["arm"]: row[cis_cost.PER_TOKEN] for row in rows}["TIS"] == f"{1e3 * 30.51 / 249:.1f}"


def test_phases_are_timed_in_turn_and_the_first_round_is_not_counted():
    bench, ticks = cost_phases.Bench(cost_phases.SMALL["tiny"]), iter(range(10**6))
    before = [weight.detach().clone() for weight in bench.model.parameters()]
    times = bench.times(3, clock=lambda: float(next(ticks)))
    assert set(times.shared) == {"Rollout", "Rescore", "Advantage"} and set(times.arms) == set(cost_phases.ARMS)
    assert {len(v) for phases in (times.shared, *times.arms.values()) for v in phases.values()} == {3}
    assert {value for phases in times.arms.values() for values in phases.values() for value in values} == {1.0}
    drift = max(float((a - b.detach()).abs().max()) for a, b in zip(before, bench.model.parameters(), strict=True))
    assert drift < 1e-6


def test_cost_is_measured_from_the_command_line_on_one_thread(tmp_path, capsys):
    threads = torch.get_num_threads()
    assert run_command(app, "paper-repro", ["measure", "cost", "--smoke", "--out", str(tmp_path)]) == 0
    path = tmp_path / "smoke" / cis_cost.FILE
    assert str(path) in capsys.readouterr().out
    result = json.loads(path.read_text())["result"]
    assert result["threads"] == 1 and len(result["sizes"][0]["load"]) == 2
    assert torch.get_num_threads() == threads


def test_a_missing_measurement_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(cis_cost, "RESULTS", tmp_path)
    with pytest.raises(InputError, match="measure cost --out paper_repro/results"):
        cis_cost.table14(TINY)
    (tmp_path / cis_cost.FILE).write_text("{")
    with pytest.raises(InputError, match="readable"):
        cis_cost.table14(TINY)
