"""Verdicts of the CIS training tables follow from runs: planted results that must flip them do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paper_repro import (
    cis_dynamics,
    cis_settings,
    cis_sweeps,
    cis_tokens,
    cis_training,
    cost_phases,
    lab_cis,
    lab_results,
)
from paper_repro.__main__ import app
from paper_repro.cis_tokens import matched_caps, walked
from paper_repro.lab_cis import ARMS, agreement, average_of, judged_agreement, ranks, welch
from paper_repro.lab_results import bundled
from paper_repro.reported_tables import reported
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.stats.interval import Interval
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import train_grpo
from tests.paper_repro.laboratory_worlds import planted

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
TINY = Setting(scale="tiny")
STUDIES = {
    "mismatch": ("cis_table1", "cis_table10", "cis_fig10"), "mismatch_experts": (), "mismatch_controls": ("cis_table2",),
    "mismatch_lambda": ("cis_table11", "cis_fig6"), "mismatch_kappa": ("cis_table12",),
}  # fmt: skip
WHERE = "dense model, 24 times the paper's mismatch"
FEW = {"noise": ("x24",)}


def verdicts(finding):
    """Claim -> verdict."""
    return {claim["claim"]: claim["verdict"] for claim in finding.claims}


def curves(levels, seed, **given):
    """Columns that the tables of dynamics read."""
    flat = {name: [value] * 15 for name, value in
            {"grad_norm": 1.0, "entropy": 0.1, "length": 5.0, "acted": 0.01, "max_log_k": 3.0}.items()}  # fmt: skip
    columns = {f"curve_{name}": values for name, values in flat.items()}
    return columns | {"peak_grad_norm": 5.0, "late_grad_norm": 1.0, "late_max_log_k": 3.0} | given


def table(module, function, results, monkeypatch):
    """The finding of a table made of planted results, which are given by the study's name."""
    for place in {module, cis_settings} - {cis_dynamics}:
        monkeypatch.setattr(place, "results_of", lambda name, *_: results(name))
    return getattr(module, function)(TINY)


# ------------------------------------------------------------------------------------------------ table 1
ORDER = ("none", "tis", "exact", "kpop", "icepop", "cis")  # by the paper's averages


def arms(rewards, spread=0.02, shape=curves, seeds=10, swing=0.0):
    """Results of the studies of arms under the largest mismatch: reward by arm, .5 for those not named; CIS's swings."""

    def number(levels, seed):
        return rewards.get(levels["arm"], 0.5) + (swing * (-1) ** seed if levels["arm"] == "cis" else 0.0)

    return lambda name: planted(name, number, spread=spread, shape=shape, keep=FEW, seeds=seeds)


@pytest.mark.parametrize(
    ("rewards", "spread", "swing", "ahead", "order"),
    [
        ({arm: 0.3 + 0.1 * k for k, arm in enumerate(ORDER)}, 0.02, 0.0, REPRODUCED, REPRODUCED),
        ({arm: 0.8 - 0.1 * k for k, arm in enumerate(ORDER)}, 0.02, 0.0, NOT, NOT),
        (dict.fromkeys(ORDER, 0.6), 0.005, 0.0, NOT, None),
        (dict.fromkeys(ORDER, 0.6), 0.005, 0.3, NOISE, None),
    ],
    ids=["as_printed", "reversed", "all_alike", "seeds_differ_too_much"],
)
def test_order_of_the_arms(rewards, spread, swing, ahead, order, monkeypatch):
    words = verdicts(table(cis_training, "table1", arms(rewards, spread, swing=swing), monkeypatch))
    assert {words[f"CIS ends above {ARMS[arm][0]} ({WHERE})"] for arm in ORDER[:-1]} == {ahead}
    if order:
        assert words[f"the printed arms stand in the paper's order ({WHERE})"] == order


def test_one_arm_that_is_above_cis_flips_its_claim_alone(monkeypatch):
    rewards = {arm: 0.3 + 0.1 * k for k, arm in enumerate(ORDER)} | {"tis": 0.95}
    words = verdicts(table(cis_training, "table1", arms(rewards), monkeypatch))
    assert words[f"CIS ends above TIS, C = 2 ({WHERE})"] == NOT
    assert words[f"CIS ends above IcePop ({WHERE})"] == REPRODUCED


def test_table1_has_every_setting_ranks_and_whether_there_was_harm(monkeypatch):
    rewards = {arm: 0.3 + 0.1 * k for k, arm in enumerate(ORDER)}
    finding = table(cis_training, "table1", arms(rewards | {"no_mismatch": 0.9}), monkeypatch)
    assert len({row["table"] for row in finding.rows}) == 2 == len(finding.checks)
    assert {check.word for check in finding.checks} == {"holds"}
    for row in finding.rows:
        if row["paper, rank"]:
            assert row["paper, rank"] == row["our rank"]
    shown = {row["arm"]: row["paper, average"] for row in finding.rows}
    assert shown["CIS"] == "34.78 ± 0.25" and shown["Seq-MIS"] == "not shown" == shown["Engines agree"]
    alike = table(cis_training, "table1", arms({"no_mismatch": 0.5}, spread=0.005), monkeypatch)
    assert {check.word for check in alike.checks} == {"does not hold"}
    assert cis_training.judged_harm([0.2, 0.9] * 5, [0.5] * 10, "test")[0] is None


# ------------------------------------------------------------------------------------------------ table 2
def controls(rewards, fallen=(), spread=0.02, shape=curves):
    def results(name):
        return planted(
            name, lambda levels, seed: rewards.get(levels["arm"], 0.8), spread=spread, shape=shape,
            collapsed=lambda levels, seed: levels["arm"] in fallen,
        )  # fmt: skip

    return results


def test_controls(monkeypatch):
    low = dict.fromkeys(cis_training.CONTROLS[1:], 0.4)
    words = verdicts(table(cis_training, "table2", controls(low, ("band", "tis_113")), monkeypatch))
    assert set(words.values()) == {REPRODUCED} and len(words) == 18
    band = [f"{ARMS['band'][0]} collapses, CIS does not ({size})" for size in list(cis_settings.SIZES.values())[1:]]
    upright = verdicts(table(cis_training, "table2", controls(low, ("tis_113",)), monkeypatch))
    assert {upright[claim] for claim in band} == {NOT}
    assert upright[f"CIS ends above {ARMS['band'][0]} ({cis_settings.SIZES['x8']})"] == REPRODUCED
    above = verdicts(table(cis_training, "table2", controls(low | {"band": 0.9}, ("band", "tis_113")), monkeypatch))
    assert {above[claim] for claim in band} == {NOT}  # a collapse that ends above CIS is none


def test_caps_are_compared_where_they_are_matched(monkeypatch):
    claims = verdicts(table(cis_training, "table2", controls({}), monkeypatch))
    matched = sorted(claim for claim in claims if "mean cap" in claim or "as often" in claim)
    assert len(matched) == 4
    assert all(("at 8 times" in claim) == ("(8 times" in claim) for claim in matched)


def test_the_share_acted_on_stands_beside_the_controls(monkeypatch):
    def shape(levels, seed):
        return curves(levels, seed, curve_acted=[0.02, 0.04] if levels["arm"] == "tis" else [0.0, 0.01])

    found = table(cis_training, "table2", controls({}, shape=shape), monkeypatch)
    rows = {row["arm"]: row["acted on"] for row in found.rows}
    assert (rows["TIS, C = 2"], rows["CIS"]) == ("3.00%", "0.50%")


# ------------------------------------------------------------------------------------------------ tables 11 and 12
def sweep(name, factor, rewards, fallen=(), spread=0.02):
    return planted(
        name, lambda levels, seed: rewards.get(levels[factor], 0.8), spread=spread, keep={"noise": ("paper", "x24")},
        collapsed=lambda levels, seed: levels[factor] in fallen,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "fallen", "zero", "rest"),
    [
        ({"0": 0.1}, ("0",), REPRODUCED, REPRODUCED),
        ({"0": 0.1}, (), NOT, REPRODUCED),
        ({}, ("0",), NOT, REPRODUCED),
        ({"0": 0.1, "0.45": 0.5, "0.89": 0.5, "1.6": 0.5, "3.1": 0.5}, ("0",), REPRODUCED, NOT),
    ],
    ids=["as_printed", "no_collapse", "collapse_without_loss", "not_flat"],
)
def test_thresholds(rewards, fallen, zero, rest, monkeypatch):
    results = sweep("mismatch_lambda", "lam", rewards, fallen)
    words = verdicts(table(cis_sweeps, "table11", lambda _: results, monkeypatch))
    assert {word for claim, word in words.items() if claim.startswith("lambda = 0 ")} == {zero}
    assert {word for claim, word in words.items() if "loses nothing" in claim} == {rest}
    assert len(words) == 10


@pytest.mark.parametrize(("zero", "verdict"), [(0.5, REPRODUCED), (0.8, NOT), (0.9, NOT)])
def test_floors(zero, verdict, monkeypatch):
    monkeypatch.setattr(cis_sweeps, "results_of", lambda *_: sweep("mismatch_kappa", "kappa", {"0": zero}))
    words = verdicts(cis_sweeps.swept("kappa", TINY))
    assert {word for claim, word in words.items() if claim.startswith("kappa = 0 ")} == {verdict}
    assert {word for claim, word in words.items() if "1e-3 loses nothing" in claim} == {REPRODUCED}


def test_levels_of_the_sweeps_are_those_of_the_paper():
    for factor, (study, _, default) in cis_sweeps.SWEPT.items():
        assert list(bundled(study).factors[factor]) == list(cis_sweeps.averages(factor))
        settings = bundled(study).config({factor: default, "noise": "paper"}).rule_params
        assert (settings["lam"], settings["floor"]) == (2.3, 5e-3)


def test_figure6_draws_the_papers_averages_and_ours(monkeypatch):
    studies = {"mismatch_lambda": "lam", "mismatch_kappa": "kappa"}
    monkeypatch.setattr(cis_sweeps, "results_of", lambda name, *_: sweep(name, studies[name], {"0": 0.2}))
    found = cis_sweeps.figure6(TINY).curves
    assert found["lam"]["paper"] == [8.75, 33.85, 34.08, 33.89, 34.78, 33.35]
    assert found["kappa"]["ours"]["x24"]["reward"][0] == pytest.approx(0.2, abs=0.02)
    assert found["kappa"]["ours"]["x24"]["reward"][1] == pytest.approx(0.8, abs=0.02)


# ------------------------------------------------------------------------------------------------ table 10
def test_dynamics_are_judged_by_the_statistic_they_name(monkeypatch):
    peaks = {"exact": 70.0, "kpop": 30.0}
    acted = {"icepop": 0.036, "kpop": 0.013, "tis": 0.008, "tis_113": 0.043, "exact": 0.0005}

    def shape(levels, seed):
        arm, jitter = levels["arm"], 1 + 0.01 * (seed % 3)
        return curves(
            levels, seed, peak_grad_norm=peaks.get(arm, 3.0) * jitter, late_grad_norm=3.6 if arm == "exact" else 1.0,
            curve_acted=[acted.get(arm, 0.0) * jitter] * 15, curve_entropy=[0.2 if arm == "none" else 0.06] * 15,
            curve_reward=[0.73 if arm == "none" else 0.6 if arm == "tis_113" else 0.86] * 15,
            late_max_log_k=9.5 if arm == "none" else 30.0,
        )  # fmt: skip

    finding = table(cis_dynamics, "table10", arms({}, shape=shape), monkeypatch)
    assert set(verdicts(finding).values()) == {REPRODUCED} and len(finding.claims) == len(cis_dynamics.CLAIMS)
    shown = {(row["table"], row["arm"]): row for row in finding.rows}
    assert shown["Peak grad.", "Exact ratio"]["paper"] == "69.5 ± 41.4"
    assert shown["Acted on (%)", "IcePop"][WHERE].startswith("3.6")
    assert shown["Reward", "CIS"]["paper"] == "not shown"
    peaks.update(exact=2.0, kpop=2.0)
    flipped = verdicts(table(cis_dynamics, "table10", arms({}, shape=shape), monkeypatch))
    assert {word for claim, word in flipped.items() if "peaks" in claim} == {NOT}
    assert {word for claim, word in flipped.items() if "peaks" not in claim} == {REPRODUCED}


def test_statistics_are_of_the_last_third_and_infinities_are_large():
    row = {
        "curve_reward": [0.0] * 10 + [0.4, math.nan, 0.6, 0.6, 0.6],
        "peak_grad_norm": math.inf,
        "late_grad_norm": math.nan,
    }
    assert cis_dynamics.STATISTICS["Reward"](row) == pytest.approx((0.4 + 3 * 0.6 + 0.0) / 5)
    assert cis_dynamics.STATISTICS["Peak grad."](row) == cis_dynamics.MOST == cis_dynamics.STATISTICS["Grad. norm"](row)
    assert cis_dynamics.late("reward")({"curve_reward": []}) == 0.0


def test_bands_span_all_seeds_and_end_where_runs_end(monkeypatch):
    def shape(levels, seed):
        return curves(levels, seed, curve_reward=[0.1 * seed, 0.5] if seed else [0.0])

    found = table(cis_dynamics, "figure10", arms({}, shape=shape, seeds=5), monkeypatch).curves[WHERE]
    reward = found["arms"]["cis"]["reward"]
    assert (reward["low"], reward["high"]) == ([0.0, 0.5], [0.4, 0.5])
    assert reward["mean"] == pytest.approx([0.2, 0.5]) and found["stretch"] == 10


# ------------------------------------------------------------------------------------------------ what they share
def test_the_printed_rows_exist():
    missing = [arm for arm, (_, where) in ARMS.items() if where and (where.row, "Avg") not in reported(where.table)]
    assert missing == []
    assert {arm for arm, _ in ARMS.items() if average_of(arm)} >= set(cis_training.RIVALS) | {"cis", "band", "tis_113"}
    assert set(bundled("mismatch").factors["arm"]) | set(bundled("mismatch_controls").factors["arm"]) == set(ARMS)


def test_studies_use_the_papers_values():
    factors = bundled("mismatch").factors["arm"]
    for arm, name in (
        ("tis", "TIS"),
        ("icepop", "IcePop"),
        ("kpop", "KPop"),
        ("seq_tis", "Seq-TIS"),
        ("seq_mis", "Seq-MIS"),
    ):
        rule, params = cost_phases.ARMS[name]
        assert (factors[arm]["rule"], factors[arm]["rule_params"]) == (rule, params)
    assert bundled("mismatch_controls").factors["arm"]["band"]["rule_params"]["low"] == 0.5
    for name in ("mismatch_experts", "mismatch_controls"):
        for arm in set(bundled(name).factors["arm"]) & set(factors):
            for noise in ("x8", "x24"):
                here, there = (
                    bundled(study).config({"arm": arm, "noise": noise}).plain() for study in ("mismatch", name)
                )
                assert here | {"experts": there["experts"]} == there


def test_welch_against_scipy():
    from scipy.stats import ttest_ind_from_stats

    first, second = average_of("cis"), average_of("tis")
    assert first and second
    want = ttest_ind_from_stats(first.mean, first.sd, 3, second.mean, second.sd, 3, equal_var=False).pvalue
    assert welch(first, second) == pytest.approx(want, rel=1e-10)


def test_rank_agreement_counts_pairs():
    rewards = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [1.5, 1.5, 1.5]}
    value, interval = agreement(rewards, {"a": 1.0, "b": 2.0, "c": 3.0}, "test")
    assert value == pytest.approx(1 / 3) == interval.low  # two of three pairs agree, in every draw
    assert ranks({"a": 1.0, "b": 2.0, "c": 2.0}) == {"b": 1, "c": 1, "a": 3}
    words = [judged_agreement(Interval(low, low + 0.2, 0.95, "")) for low in np.linspace(-1, 0.8, 19)]
    places = [(NOT, NOISE, REPRODUCED).index(word) for word in words]
    assert places == sorted(places)


@pytest.mark.parametrize(("study", "names"), STUDIES.items())
def test_missing_results_are_said_to_be_with_the_command_that_makes_them(study, names, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab_results, "RESULTS", tmp_path)
    for name in names:
        assert run_command(app, "paper-repro", ["run", name, "--scale", "tiny", "--out", str(tmp_path / "out")]) == 2
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1
        assert f"testbed sweep {study} --results paper_repro/results/study_{study}.parquet" in printed


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_what_it_cannot_tell_and_has_ten_seeds(name):
    study = bundled(name)
    assert study.seeds >= 10 and len(study.limits) > 200 and study.question.endswith("?")
    assert len({cell.id for cell in study.cells()}) == len(study.cells())


# ------------------------------------------------------------------------------------------------ figure 12
SMALL = GRPOConfig.of(
    {**lab_results.SMALL, "task": "sorting", "task_params": {"digits": 2, "base": 2}, "noise": "moe", "noise_scale": 8.0,
     "rule": "cis", "rule_params": {"lam": 0.5}, "updates": 3, "prompts": 4, "responses": 4}
)  # fmt: skip


def test_walked_tokens_are_those_of_the_run_itself():
    tokens, run = list(walked(SMALL, 0)), train_grpo(SMALL, 0)
    assert [one.update for one in tokens] == [0, 1, 2]
    for name, value in (("acted", lambda one: one.acted.mean()), ("max_log_k", lambda one: np.abs(one.log_k).max())):
        np.testing.assert_allclose([value(one) for one in tokens], run.curve[name], rtol=1e-6)


def test_matched_caps_match():
    found, tokens = matched_caps(SMALL, (0, 1)), [one for seed in (0, 1) for one in walked(SMALL, seed)]
    k, p = np.exp(np.concatenate([t.log_k for t in tokens])), np.exp(np.concatenate([t.logp for t in tokens]))
    caps = 1 + np.maximum(1 - p, 5e-3) * np.expm1(0.5)
    assert found["mean cap"] == pytest.approx(caps.mean(), rel=1e-6)
    assert found["share"] == pytest.approx((k > caps).mean()) and 0.02 < found["share"] < 0.98
    assert (k > found["cap of equal share"]).mean() == pytest.approx(found["share"], abs=1.5 / len(k))


def test_a_planted_bug_in_pairing_flips_a_verdict(monkeypatch):
    """Seeds differ by more than arms do: only seed by seed can the arms be told apart."""
    easy = np.linspace(0.1, 0.9, 10).tolist()
    assert lab_cis.above("a", [x + 0.06 for x in easy], easy, "", "paired")["verdict"] == REPRODUCED
    assert lab_cis.above("a", [x + 0.06 for x in easy][::-1], easy, "", "paired")["verdict"] == NOISE


def test_tokens_of_the_figure_are_early_middle_and_late(tmp_path):
    found = cis_tokens.figure12(Setting(scale="tiny", smoke=True, out=tmp_path))
    for arm in cis_tokens.OPERATORS:
        panels = found.curves[arm]["panels"]
        assert list(panels) == list(cis_tokens.TIMES)
        starts = [panels[time]["updates"][0] for time in panels]
        assert starts == sorted(set(starts))
        for panel in panels.values():
            assert len(panel["doubt"]) == len(panel["log k"]) == len(panel["acted"]) > 0
            assert panel["share"] == pytest.approx(np.mean(panel["acted"]))
