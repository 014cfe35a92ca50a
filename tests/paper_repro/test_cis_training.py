"""Verdicts of the CIS training tables follow from runs: planted results that must flip them do."""

from __future__ import annotations

import math

import pytest

from paper_repro import cis_controls, cis_dynamics, cis_harm, cis_settings, cis_training, cost_phases, lab_results
from paper_repro.__main__ import app
from paper_repro.cis_averages import gap_of, welch
from paper_repro.cis_verdicts import NOTHING
from paper_repro.lab_cis import ARMS, BASE, average_of
from paper_repro.lab_results import bundled
from paper_repro.reported_tables import reported
from paper_repro.study import Setting
from paper_repro.tables import table_text
from testbed.core.command import run_command
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
    monkeypatch.setattr(cis_settings, "results_of", lambda name, *_: results(name))
    return getattr(module, function)(TINY)


# ------------------------------------------------------------------------------------------------ table 1
ORDER = ("none", "tis", "exact", "kpop", "icepop", "cis")  # by the paper's averages


def arms(rewards, spread=0.02, shape=curves, seeds=10, swing=0.0):
    """Results of the studies of arms under the largest mismatch: reward by arm, .5 for those not named; CIS's swings."""

    def number(levels, seed):
        return rewards.get(levels["arm"], 0.5) + (swing * (-1) ** seed if levels["arm"] == "cis" else 0.0)

    return lambda name: planted(name, number, spread=spread, shape=shape, keep=FEW, seeds=seeds)


HARM = {"no_mismatch": 0.95}
PRINTED = HARM | {arm: 0.3 + 0.1 * k for k, arm in enumerate(ORDER)}
PLACES = (WHERE, "4 experts, 24 times the paper's mismatch")
ALL = "all places together"


@pytest.mark.parametrize(
    ("rewards", "spread", "swing", "ahead", "order"),
    [
        (PRINTED, 0.02, 0.0, REPRODUCED, REPRODUCED),
        (HARM | {arm: 0.8 - 0.1 * k for k, arm in enumerate(ORDER)}, 0.02, 0.0, NOT, NOT),
        (HARM | dict.fromkeys(ORDER, 0.6), 0.002, 0.0, NOT, None),
        (HARM | dict.fromkeys(ORDER, 0.6), 0.005, 0.3, NOISE, None),
    ],
    ids=["as_printed", "reversed", "all_alike", "seeds_differ_too_much"],
)
def test_order_of_the_arms(rewards, spread, swing, ahead, order, monkeypatch):
    words = verdicts(table(cis_training, "table1", arms(rewards, spread, swing=swing), monkeypatch))
    assert {words[f"CIS ends above {ARMS[arm][0]} ({where})"] for arm in ORDER[:-1] for where in (*PLACES, ALL)} == {
        ahead
    }
    if order:
        assert words[f"the printed arms stand in the paper's order ({WHERE})"] == order


def test_one_arm_that_is_above_cis_flips_its_claim_alone(monkeypatch):
    words = verdicts(table(cis_training, "table1", arms(PRINTED | {"tis": 0.95}), monkeypatch))
    assert {words[f"CIS ends above TIS, C = 2 ({where})"] for where in (WHERE, ALL)} == {NOT}
    assert {words[f"CIS ends above IcePop ({where})"] for where in (WHERE, ALL)} == {REPRODUCED}


@pytest.mark.parametrize("form", cis_training.FORMS)
def test_to_be_first_is_to_be_above_every_one_of_the_seven(form, monkeypatch):
    name = {"cis": "CIS", "cis_linear": "CIS, linear cap"}[form]
    words = verdicts(table(cis_training, "table1", arms(PRINTED | {form: 0.9}), monkeypatch))
    assert {words[f"{name} ends above all seven baselines ({where})"] for where in (*PLACES, ALL)} == {REPRODUCED}
    for rival in cis_training.BASELINES:
        places = cis_settings.places_of(arms(PRINTED | {form: 0.9, rival: 0.93})("mismatch"))
        row = cis_training.first(form, places, ALL)
        assert (
            row["verdict"] == NOT
            and f"rests on {ARMS[rival][0]}:" in row["found"]
            and "surely above 6 of 7" in row["found"]
        )


@pytest.mark.parametrize(
    "rewards", [PRINTED, {arm: 0.8 - 0.1 * k for k, arm in enumerate(ORDER)}], ids=["first", "last"]
)
@pytest.mark.parametrize("agree", [0.0, -0.2])
def test_where_nothing_is_lost_no_correction_wins_or_fails(rewards, agree, monkeypatch):
    given = rewards | {"no_mismatch": rewards["none"] + agree}
    finding = table(cis_training, "table1", arms(given, spread=0.0), monkeypatch)
    assert {check.word for check in finding.checks} == {"does not hold"}
    assert {(claim["verdict"], claim["to tell"]) for claim in finding.claims} == {(NOISE, NOTHING)}
    assert any(
        f"of {len(finding.claims)} claims, {len(finding.claims)} not judged" in remark for remark in finding.remarks
    )


def test_harm_at_one_size_leaves_the_others_without_verdict(monkeypatch):
    def results(name):
        def number(levels, seed):
            return PRINTED.get(levels["arm"], 0.5) if levels["noise"] == "x24" else 0.9

        return planted(name, number, shape=curves)

    words = verdicts(table(cis_training, "table1", results, monkeypatch))
    assert words[f"CIS ends above KPop ({WHERE})"] == REPRODUCED
    others = [claim for claim in words if "x24" not in claim and "24 times" not in claim and ALL not in claim]
    assert others and {words[claim] for claim in others} == {NOISE}


def test_a_gap_as_small_as_the_papers_is_not_refuted_by_an_interval_that_holds_it():
    """CIS leads IcePop by .006 in the paper and no correction by .038: an interval that ends between them refutes the second."""
    alike = arms(HARM | dict.fromkeys(ORDER, 0.6), 0.03, seeds=12)("mismatch")
    gaps = {arm: gap_of(average_of("cis"), average_of(arm)) for arm in ("icepop", "none")}
    assert list(gaps.values()) == [pytest.approx(0.006), pytest.approx(0.0379)]
    for row in (cis_training.ahead(place, arm) for place in cis_settings.places_of(alike) for arm in gaps):
        low, high = map(float, row["found"].split("[")[1].split("]")[0].split(", "))
        assert low < 0 and 0.006 < high < 0.0379
        assert row["verdict"] == (NOISE if "IcePop" in row["claim"] else NOT)


def test_table1_has_every_setting_ranks_and_whether_there_was_harm(monkeypatch):
    finding = table(cis_training, "table1", arms(PRINTED), monkeypatch)
    assert len({row["table"] for row in finding.rows}) == 3 == len(finding.checks)
    assert {check.word for check in finding.checks} == {"holds"}
    for row in finding.rows:
        if row["paper, rank"]:
            assert row["paper, rank"] == row["our rank"]
    shown = {row["arm"]: row["paper, average"] for row in finding.rows}
    assert shown["CIS"] == "34.78 ± 0.25" and shown["Seq-MIS"] == "not shown" == shown["Engines agree"]
    base = [row for row in finding.rows if row["arm"].startswith(BASE)]
    assert [(row["paper, average"], row["final reward"][:5], row["our rank"]) for row in base] == [
        ("28.93", "0.500", "")
    ] * 2
    alike = table(cis_training, "table1", arms({"no_mismatch": 0.5}, spread=0.0), monkeypatch)
    assert {check.word for check in alike.checks} == {"does not hold"}
    assert cis_harm.judged_harm([0.2, 0.9] * 5, [0.5] * 10, "test")[0] is None


def test_pooled_runs_have_places_as_strata(monkeypatch):
    """Two places that differ by much, with no spread inside: a bootstrap that keeps the mix has nothing to draw."""

    def results(name):
        rewards = PRINTED if name == "mismatch" else {arm: value / 2 for arm, value in PRINTED.items()}
        return planted(name, lambda levels, seed: rewards.get(levels["arm"], 0.25), spread=0.0, shape=curves, keep=FEW)

    finding = table(cis_training, "table1", results, monkeypatch)
    row = next(row for row in finding.rows if row["table"].startswith("All places") and row["arm"] == "CIS")
    assert row["minus reference"] == "+0.375 [+0.375, +0.375]"


def test_how_alike_seeds_are_is_said(monkeypatch):
    def results(name):
        return planted(name, lambda levels, seed: 0.5 + 0.01 * seed, spread=0.0, shape=curves, keep=FEW)

    finding = table(cis_training, "table1", results, monkeypatch)
    assert any(f"by seed pays): {WHERE} +1.00 (10 arms)" in remark for remark in finding.remarks)


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
    assert {title for title, _ in shown} == {f"{where[0].upper()}{where[1:]}: paper / ours" for where in PLACES}
    title = f"D{WHERE[1:]}: paper / ours"
    assert list(shown[title, "CIS"]) == ["table", "arm", *cis_dynamics.STATISTICS]
    assert shown[title, "Exact ratio"]["Peak grad."].startswith("69.5 ± 41.4 / 70.")
    assert shown[title, "IcePop"]["Acted on (%)"].startswith("3.64 ± 0.40 / 3.6")
    assert shown[title, "CIS"]["Reward"].startswith("not shown / 0.860")
    text = table_text({"name": "t", "scale": "tiny", "title": "", "smoke": False, **finding.plain()})
    (header,) = {line for line in text.splitlines() if line.startswith("| arm |")}
    assert header.replace("\\|", "").count("|") == len(cis_dynamics.STATISTICS) + 2  # a name with bars is one column
    peaks.update(exact=2.0, kpop=2.0)
    flipped = verdicts(table(cis_dynamics, "table10", arms({}, shape=shape), monkeypatch))
    assert {word for claim, word in flipped.items() if "peaks" in claim} == {NOT}
    assert {word for claim, word in flipped.items() if "peaks" not in claim} == {REPRODUCED}


@pytest.mark.parametrize(("lead", "verdict"), [(0.005, REPRODUCED), (-0.005, NOT), (0.0, NOISE)])
def test_statistics_of_dynamics_are_judged_by_sign_alone(lead, verdict, monkeypatch):
    """A lead of .005 % of the tokens counts, and one that is smaller than the margin of rewards is not called none."""

    def shape(levels, seed):
        share = (
            0.01 + (0.01 * lead if levels["arm"] == "icepop" else 0.0) + 1e-4 * (seed % 2) * (levels["arm"] == "kpop")
        )
        share -= 5e-5 * (levels["arm"] == "kpop") * (lead == 0)
        return curves(
            levels, seed, curve_acted=[share - 1e-4 * (seed % 2) * (levels["arm"] == "kpop") * (lead != 0)] * 15
        )

    words = verdicts(table(cis_dynamics, "table10", arms({}, shape=shape), monkeypatch))
    assert words[f"IcePop acts on more tokens than KPop ({WHERE})"] == verdict


def test_statistics_are_of_the_last_third_and_infinities_are_large():
    row = {
        "curve_reward": [0.0] * 10 + [0.4, math.nan, 0.6, 0.6, 0.6],
        "peak_grad_norm": math.inf,
        "late_grad_norm": math.nan,
        "outcome": "finished",
    }
    assert cis_dynamics.STATISTICS["Reward"](row) == pytest.approx((0.4 + 3 * 0.6 + 0.0) / 5)
    assert cis_dynamics.STATISTICS["Peak grad."](row) == cis_dynamics.MOST == cis_dynamics.STATISTICS["Grad. norm"](row)
    assert cis_dynamics.late("reward")({"curve_reward": [], "outcome": "diverged"}) == 0.0


def test_a_run_that_diverged_earns_nothing_in_what_it_had_left(monkeypatch):
    """No correction does well and diverges halfway: its reward is not that of the updates before."""

    def shape(levels, seed):
        died = (
            {"curve_reward": [0.9] * 7, "outcome": "diverged"}
            if levels["arm"] == "none"
            else {"curve_reward": [0.7] * 15}
        )
        return curves(levels, seed, **died)

    words = verdicts(table(cis_dynamics, "table10", arms({}, shape=shape), monkeypatch))
    assert words[f"without correction the training reward ends below that of TIS ({WHERE})"] == REPRODUCED
    empty = {"curve_acted": [], "curve_reward": [], "outcome": "diverged"}
    assert cis_dynamics.STATISTICS["Acted on (%)"](empty) == 0.0 == cis_dynamics.STATISTICS["Reward"](empty)


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
    assert set(bundled("mismatch_controls").factors["arm"]) == set(cis_controls.CONTROLS)


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
            for noise in bundled(name).factors["noise"]:
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
