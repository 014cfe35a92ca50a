"""Controls of CIS, its threshold and its floor: planted results that must flip a verdict do."""

from __future__ import annotations

import pytest

from paper_repro import cis_controls, cis_settings, cis_sweeps
from paper_repro.cis_verdicts import NOTHING
from paper_repro.lab_cis import ARMS
from paper_repro.lab_results import bundled
from paper_repro.study import Setting
from tests.paper_repro.laboratory_worlds import planted

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
TINY = Setting(scale="tiny")
SIZES = list(cis_settings.SIZES.values())


def verdicts(finding):
    """Claim -> verdict."""
    return {claim["claim"]: claim["verdict"] for claim in finding.claims}


def mismatch(harmful=tuple(cis_settings.SIZES)):
    """Runs of the study of arms that lose reward without correction at these sizes."""

    def number(levels, seed):
        return 0.5 if levels["arm"] == "none" and levels["noise"] in harmful else 0.9

    return planted("mismatch", number)


def found(module, function, results, monkeypatch, harmful=tuple(cis_settings.SIZES)):
    """The finding of a table made of planted results, where the mismatch does harm at these sizes."""
    monkeypatch.setattr(module, "results_of", lambda *_: results)
    monkeypatch.setattr(cis_settings, "results_of", lambda *_: mismatch(harmful))
    return getattr(module, function)(TINY)


# ------------------------------------------------------------------------------------------------ table 2
def controls(rewards, fallen=(), spread=0.02, acted=lambda levels: 0.01):
    return planted(
        "mismatch_controls", lambda levels, seed: rewards.get(levels["arm"], 0.8), spread=spread,
        shape=lambda levels, seed: {"curve_acted": [acted(levels)] * 2},
        collapsed=lambda levels, seed: levels["arm"] in fallen,
    )  # fmt: skip


LOW = dict.fromkeys(cis_controls.CONTROLS[1:], 0.4)
BAND = [f"{ARMS['band'][0]} collapses, CIS does not ({size})" for size in SIZES]


def test_controls(monkeypatch):
    words = verdicts(found(cis_controls, "table2", controls(LOW, ("band", "tis_113")), monkeypatch))
    assert set(words.values()) == {REPRODUCED} and len(words) == 5 * 3 + 2 * 3 + 5 + 2 + 2 * 3
    upright = verdicts(found(cis_controls, "table2", controls(LOW, ("tis_113",)), monkeypatch))
    assert {upright[claim] for claim in BAND} == {NOT}
    assert upright[f"CIS ends above {ARMS['band'][0]} ({SIZES[1]})"] == REPRODUCED
    above = verdicts(found(cis_controls, "table2", controls(LOW | {"band": 0.9}, ("band", "tis_113")), monkeypatch))
    assert {above[claim] for claim in BAND} == {NOT}  # a collapse that ends above CIS is none


def test_that_cis_does_not_collapse_is_looked_at(monkeypatch):
    words = verdicts(found(cis_controls, "table2", controls(LOW, ("band", "tis_113", "cis")), monkeypatch))
    assert {word for claim, word in words.items() if "collapses" in claim} == {NOT}
    assert {word for claim, word in words.items() if "ends above" in claim} == {REPRODUCED}


def test_harm_decides_what_is_judged_and_collapses_are_judged_everywhere(monkeypatch):
    results = controls(LOW, ("band", "tis_113"))
    finding = found(cis_controls, "table2", results, monkeypatch, harmful=("x24",))
    words = verdicts(finding)
    assert {word for claim, word in words.items() if "collapses" in claim} == {REPRODUCED}
    assert {word for claim, word in words.items() if "ends above" in claim and "(24" in claim} == {REPRODUCED}
    others = [
        row
        for row in finding.claims
        if "ends above" in row["claim"] and any(f"({size})" in row["claim"] for size in SIZES[:2])
    ]
    assert others and {(row["verdict"], row["to tell"]) for row in others} == {(NOISE, NOTHING)}


def test_caps_are_compared_where_they_are_matched(monkeypatch):
    claims = verdicts(found(cis_controls, "table2", controls({}), monkeypatch))
    matched = sorted(claim for claim in claims if "mean cap" in claim or "as often" in claim)
    single = [claim for claim in matched if "together" not in claim]
    assert len(single) == 6 and len(matched) == 8
    for words, size in (
        ("at the paper's size", "(the paper"),
        ("at 8 times", "(8 times"),
        ("at 24 times", "(24 times"),
    ):
        assert sum(words in claim and size in claim for claim in single) == 2


@pytest.mark.parametrize(("arms", "verdict"), [(("mean_x1", "mean_x8", "mean_x24"), NOT), (("tis",), REPRODUCED)])
def test_matched_caps_are_pooled_each_at_its_size(arms, verdict, monkeypatch):
    words = verdicts(found(cis_controls, "table2", controls(LOW | dict.fromkeys(arms, 0.9)), monkeypatch))
    assert words[f"CIS ends above TIS, {cis_controls.MEAN} ({cis_controls.ALL})"] == verdict
    assert words[f"CIS ends above TIS, {cis_controls.SHARE} ({cis_controls.ALL})"] == REPRODUCED
    assert words[f"CIS ends above TIS, C = 2 ({cis_controls.ALL})"] == (NOT if arms == ("tis",) else REPRODUCED)


def test_the_share_acted_on_stands_beside_the_controls(monkeypatch):
    results = controls({}, acted=lambda levels: 0.03 if levels["arm"] == "tis" else 0.005)
    rows = {row["arm"]: row["acted on"] for row in found(cis_controls, "table2", results, monkeypatch).rows}
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
        ({"0": 0.1}, ("0", "2.3"), NOT, REPRODUCED),
        ({}, ("0",), NOT, REPRODUCED),
        ({"0": 0.1, "0.45": 0.5, "0.89": 0.5, "1.6": 0.5, "3.1": 0.5}, ("0",), REPRODUCED, NOT),
    ],
    ids=["as_printed", "no_collapse", "the_default_collapses_too", "collapse_without_loss", "not_flat"],
)
def test_thresholds(rewards, fallen, zero, rest, monkeypatch):
    results = sweep("mismatch_lambda", "lam", rewards, fallen)
    words = verdicts(found(cis_sweeps, "table11", results, monkeypatch))
    assert {word for claim, word in words.items() if claim.startswith("lambda = 0 collapses")} == {zero}
    assert {word for claim, word in words.items() if "loses nothing" in claim} == {rest}
    below = REPRODUCED if "0" in rewards else NOT
    assert words[f"lambda = 0 ends below the default 2.3 ({cis_sweeps.ALL})"] == below
    assert len(words) == 2 * 5 + 5


def test_where_nothing_is_lost_no_threshold_loses_nothing(monkeypatch):
    results = sweep("mismatch_lambda", "lam", {"0": 0.1}, ("0",))
    finding = found(cis_sweeps, "table11", results, monkeypatch, harmful=("x24",))
    nothing = [row["claim"] for row in finding.claims if row["to tell"] == NOTHING]
    assert sum("the paper's mismatch)" in claim for claim in nothing) == 4 and not any(
        "(24 times" in claim for claim in nothing
    )
    assert verdicts(finding)["lambda = 0 collapses, 2.3 does not (the paper's mismatch)"] == REPRODUCED


@pytest.mark.parametrize(("zero", "verdict"), [(0.5, REPRODUCED), (0.8, NOT), (0.9, NOT)])
def test_floors(zero, verdict, monkeypatch):
    results = sweep("mismatch_kappa", "kappa", {"0": zero}, spread=0.005)
    monkeypatch.setattr(cis_sweeps, "results_of", lambda *_: results)
    monkeypatch.setattr(cis_settings, "results_of", lambda *_: mismatch())
    words = verdicts(cis_sweeps.swept("kappa", TINY))
    assert {word for claim, word in words.items() if claim.startswith("kappa = 0 ")} == {verdict}
    assert {word for claim, word in words.items() if "1e-3 loses nothing" in claim} == {REPRODUCED}


def test_levels_of_the_sweeps_are_those_of_the_paper():
    for factor, (study, _, default) in cis_sweeps.SWEPT.items():
        assert list(bundled(study).factors[factor]) == list(cis_sweeps.averages(factor))
        for noise in bundled(study).factors["noise"]:
            here = bundled(study).config({factor: default, "noise": noise}).plain()
            assert here == bundled("mismatch").config({"arm": "cis", "noise": noise}).plain()  # as the remark says


def test_figure6_draws_the_papers_averages_and_ours(monkeypatch):
    studies = {"mismatch_lambda": "lam", "mismatch_kappa": "kappa"}
    monkeypatch.setattr(cis_sweeps, "results_of", lambda name, *_: sweep(name, studies[name], {"0": 0.2}))
    drawn = cis_sweeps.figure6(TINY).curves
    assert drawn["lam"]["paper"] == [8.75, 33.85, 34.08, 33.89, 34.78, 33.35]
    assert drawn["kappa"]["ours"]["x24"]["reward"][0] == pytest.approx(0.2, abs=0.02)
    assert drawn["kappa"]["ours"]["x24"]["reward"][1] == pytest.approx(0.8, abs=0.02)
