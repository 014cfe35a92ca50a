"""Verdicts on what SPIRE claims about staleness follow from runs: planted results that must flip them do."""

from __future__ import annotations

import pytest

from paper_repro import lab_staleness, lab_survival, run, tables
from paper_repro.__main__ import app
from paper_repro.comparison import Check
from paper_repro.lab_power import multiplicity, pairing
from paper_repro.studies import STUDIES
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.core.sections import WIDTH
from tests.paper_repro.laboratory_worlds import planted

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
STABLE = "SPIRE remains stable at staleness 4"
CLIPPED = ("ppo_clip", "decoupled_ppo")
FAST = ", rate 0.002"
HOLDS = (True, None, False)
FEW = {"rule": ("none", "spire", *CLIPPED), "staleness": ("0", "4")}


def claim(rule, where=""):
    """The comparison with one clipped rule."""
    return f"{STABLE}{where}, where AReaL+PPO (read as {rule}) collapses"


def stale(name, spire=0.9, clipped=0.9, spread=0.02, **shape):
    """Rewards at staleness 4 and more of spire and of the clipped rules; everything else earns .9."""

    def number(levels, seed):
        late = int(levels["staleness"]) >= 4
        fell = clipped.get(levels["rule"], 0.9) if isinstance(clipped, dict) else clipped
        return spire if late and levels["rule"] == "spire" else fell if late and levels["rule"] in CLIPPED else 0.9

    return planted(name, number, spread=spread, collapsed=lambda *run: number(*run) < 0.3, keep=FEW, **shape)


def found(monkeypatch, slow, fast=None):
    """The table's finding from planted results of both studies."""
    results = {"staleness": slow, "staleness_fast": fast or stale("staleness_fast")}
    monkeypatch.setattr(lab_staleness, "results_of", lambda name, *_: results[name])
    return lab_staleness.table(Setting(scale="tiny"))


def verdicts(finding):
    """Claim -> verdict."""
    return {claim["claim"]: claim["verdict"] for claim in finding.claims}


@pytest.mark.parametrize(
    ("spire", "clipped", "spread", "stable", "ahead"),
    [
        (0.9, 0.1, 0.02, REPRODUCED, REPRODUCED),  # as the abstract says
        (0.9, 0.9, 0.02, REPRODUCED, NOT),  # nothing collapses
        (0.6, 0.1, 0.02, NOT, NOT),  # spire loses too much by itself
        (0.9, 0.5, 0.02, REPRODUCED, NOT),  # worse, but no collapse
        (0.82, 0.1, 0.3, NOISE, NOISE),  # seeds differ too much to tell
    ],
)
def test_stability_under_staleness(spire, clipped, spread, stable, ahead, monkeypatch):
    words = verdicts(found(monkeypatch, stale("staleness", spire, clipped, spread)))
    assert words[STABLE] == stable
    assert {words[claim(rule)] for rule in CLIPPED} == {ahead}


def test_each_reading_of_the_baseline_has_a_verdict_of_its_own(monkeypatch):
    words = verdicts(found(monkeypatch, stale("staleness", clipped={"ppo_clip": 0.1})))
    assert words[claim("ppo_clip")] == REPRODUCED and words[claim("decoupled_ppo")] == NOT


def test_the_second_regime_has_the_same_verdicts_on_its_own_runs(monkeypatch):
    finding = found(monkeypatch, stale("staleness"), stale("staleness_fast", clipped=0.1))
    words, checks = verdicts(finding), {check.statement: check.word for check in finding.checks}
    assert words[claim("ppo_clip")] == NOT and words[claim("ppo_clip", FAST)] == REPRODUCED
    assert checks["ours: some clipped rule collapses at some age"] == "does not hold"
    assert checks[f"ours: some clipped rule collapses at some age{FAST}"] == "holds"
    assert {row["table"] for row in finding.rows} >= {f"Largest staleness survived{where}" for where in ("", FAST)}
    words = verdicts(found(monkeypatch, stale("staleness"), stale("staleness_fast", spire=0.3, clipped=0.1)))
    assert words[STABLE] == REPRODUCED and words[STABLE + FAST] == words[claim("ppo_clip", FAST)] == NOT


@pytest.mark.parametrize(
    ("runs", "word"), [(10, "holds"), (9, "cannot be told"), (4, "cannot be told"), (0, "does not hold")]
)
def test_a_collapse_that_was_looked_for_in_many_places_must_be_plain(runs, word):
    flags = {("ppo_clip", str(lag)): [0.0] * 10 for lag in range(1, 10)}
    flags["ppo_clip", "16"] = [1.0] * runs + [0.0] * (10 - runs)
    assert lab_survival.judged_premise(flags).word == word


# ------------------------------------------------------------------------------------------------ survival
def survival(rewards=None, collapsed=lambda levels, seed: False, **shape):
    """Runs that earn .9 but where `rewards[rule][staleness]` says something else."""
    return planted(
        "staleness", lambda levels, seed: (rewards or {}).get(levels["rule"], {}).get(levels["staleness"], 0.9),
        collapsed=collapsed, **shape,
    )  # fmt: skip


def test_a_level_survived_counts_only_if_all_below_it_are():
    rewards = {"none": {"4": 0.6}, "exact": {"16": 0.6}, "tis": {"1": 0.55}, "gspo": {"8": 0.82}}
    results = survival(rewards, lambda levels, seed: (levels["rule"], levels["staleness"]) == ("cispo", "2"))
    table = {rule: lab_survival.survived(results, rule) for rule in results.levels("rule")}
    ends = {rule: (row["survives up to"], row["surely lost at"]) for rule, row in table.items()}
    assert ends["none"] == ("2", "4") and ends["exact"] == ("8", "16") and ends["tis"] == ("none", "1")
    assert ends["cispo"] == ("1", "2")  # the same reward, but it collapsed
    assert ends["spire"] == ("16", "none seen") and ends["gspo"] == ("16", "none seen")  # a loss of .08 is within .1


@pytest.mark.parametrize(("runs", "verdict"), [(0, REPRODUCED), (1, REPRODUCED), (4, NOISE), (10, NOT)])
def test_collapses_that_are_too_many_to_rule_out_are_not_survived(runs, verdict):
    results = survival(collapsed=lambda levels, seed: levels["staleness"] == "8" and seed < runs)
    state = lab_survival.state_at(results, "spire", "8")
    assert state.verdict == verdict
    assert ("collapses: about" in state.to_tell) == (verdict == NOISE)


@pytest.mark.parametrize(("start", "verdict"), [(0.5, REPRODUCED), (0.95, NOT)])
def test_a_rule_that_learns_nothing_survives_nothing(start, verdict):
    results = survival(shape=lambda levels, seed: {"start": start})
    state = lab_survival.state_at(results, "spire", "4")
    assert state.verdict == verdict and (state.gained > 0) == (verdict == REPRODUCED)
    assert lab_staleness.arm(results, "spire", "4")["gained"] == f"{state.gained:+.3f}"


# ------------------------------------------------------------------------------------------------ all ages together
def test_ages_are_strata():
    """Ages differ by .6 and runs of one age hardly: drawn together, the mean of all would be known to .1 at best."""
    results = survival(
        {"spire": {"16": 0.3, "8": 0.5, "4": 0.7}, "none": {"16": 0.1, "8": 0.3, "4": 0.5, "2": 0.7, "1": 0.7}}
    )
    row = lab_staleness.pooled(results, "spire")
    low, high = (float(end) for end in row["final reward"].split("[")[1].rstrip("]").split(","))
    assert high - low < 0.03
    assert row["minus none"].startswith("+0.2") and row["minus the same rule at 0"].startswith("-0.2")
    assert lab_staleness.pooled(results, "none")["minus none"] == ""


# ------------------------------------------------------------------------------------------------ what could be told
def test_arms_that_share_their_luck_are_correlated_by_seed():
    lucky = [[0.1 * seed + 0.01 * (seed * k % 3) for seed in range(10)] for k in (1, 2)]
    assert pairing(lucky)[0] > 0.9 > 0 > pairing([lucky[0], lucky[1][::-1]])[0]


def test_the_number_of_verdicts_is_said(monkeypatch):
    finding = found(monkeypatch, stale("staleness"))
    assert multiplicity(finding.claims) in finding.remarks
    assert len(finding.claims) == 6 and finding.remarks[1].startswith("6 verdicts")
    assert any("correlation by seed" in remark for remark in finding.remarks)


# ------------------------------------------------------------------------------------------------ what is printed
def printed(monkeypatch, capsys, out, *options):
    """What `run spire_staleness` prints of planted results, and its Markdown."""
    results = {name: stale(name) for name in ("staleness", "staleness_fast")}
    monkeypatch.setattr(lab_staleness, "results_of", lambda name, *_: results[name])
    arguments = ["run", "spire_staleness", "--scale", "tiny", "--out", str(out), *options]
    assert run_command(app, "paper-repro", arguments) == 0
    return capsys.readouterr().out, (out / "tables" / "spire_staleness_tiny.md").read_text()


def test_a_long_table_is_printed_in_short_with_every_verdict_and_where_the_rest_is(monkeypatch, capsys, tmp_path):
    text, markdown = printed(monkeypatch, capsys, tmp_path)
    shown, after = text.split("\nthe whole table, ")
    assert len(shown.splitlines()) < tables.LONG < markdown.count("\n")
    assert max(map(len, shown.splitlines())) <= WIDTH and "|" not in shown
    flat, finding = " ".join(shown.split()), found(monkeypatch, stale("staleness"))
    assert all(f"{claim['verdict']} {claim['claim']}" in flat for claim in finding.claims)
    assert all(f"{check.word} {check.statement}: {check.found}" in flat for check in finding.checks)
    assert "6 claims: 2 reproduced, 4 not reproduced." in flat and "2 checks: 2 does not hold." in flat
    assert all(row["table"] in flat for row in finding.rows)
    path = tmp_path / "tables" / "spire_staleness_tiny.md"
    assert f"{markdown.count(chr(10))} lines with what its verdicts mean: {path} (--full prints it)" in f"{after}"


def test_the_whole_table_is_printed_when_asked_for_or_when_it_is_short(monkeypatch, capsys, tmp_path):
    text, markdown = printed(monkeypatch, capsys, tmp_path, "--full")
    assert text.startswith(markdown) and "the whole table" not in text
    monkeypatch.setattr(tables, "LONG", markdown.count("\n"))
    assert printed(monkeypatch, capsys, tmp_path)[0].startswith(markdown)
    monkeypatch.setattr(tables, "LONG", markdown.count("\n") - 1)
    assert "the whole table" in printed(monkeypatch, capsys, tmp_path)[0]


def test_the_command_that_draws_the_figure_is_printed_and_draws_it(monkeypatch, capsys, tmp_path):
    text, _ = printed(monkeypatch, capsys, tmp_path)
    command = f"python -m figures spire_staleness --records {tmp_path / 'records'}"
    assert f"`{command}` draws it" in text.splitlines()
    from figures.__main__ import app as draw

    assert run_command(draw, "figures", [*command.split()[3:], "--out", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "spire_staleness_tiny.png").exists()


def test_figures_of_a_study_are_those_that_name_it():
    import importlib

    from figures.__main__ import available

    scripts = {name: importlib.import_module(f"figures.{name}") for name in available()}
    named = {name: script.REPRODUCED for name, script in scripts.items() if hasattr(script, "REPRODUCED")}
    assert len(named) > 10
    for study in {*STUDIES, *named.values()}:
        assert run.figures_of(study) == sorted(name for name, own in named.items() if own == study)


def test_no_figures_are_named_where_there_are_none(tmp_path):
    assert run.figures_of("spire_staleness", tmp_path / "nowhere") == []
    (tmp_path / "one.py").write_text('A: int = 1\nREPRODUCED = "spire_staleness"\n')
    (tmp_path / "other.py").write_text("(REPRODUCED, B), C = (1, 2), 3\n")
    assert run.figures_of("spire_staleness", tmp_path) == ["one"]


def test_cells_keep_their_numbers_in_the_short_form():
    cell = {"row": "p<0.5", "column": "MAD", "paper": "0.156", "ours": 0.04569, "low": 0.04, "high": 0.05, "unit": ""}
    cells = [cell | {"source": source, "verdict": "other model"} for source in ("dense", "experts")]
    result = {"name": "t", "scale": "real", "title": "a table", "smoke": True, "cells": cells, "rows": [], "checks": []}
    first, *sections = tables.short_form(result)
    assert first.remarks == ["Smoke: numbers show only that it runs.", "2 cells: 2 other model."]
    assert [(one.title, one.rows) for one in sections] == [
        (name, [("p<0.5", "MAD", "0.156", "0.04569", "other model")]) for name in ("DENSE", "EXPERTS")
    ]


def test_the_notes_say_which_words_are_of_what(monkeypatch):
    finding = found(monkeypatch, stale("staleness"))
    note = next(remark for remark in finding.remarks if remark.startswith("Three kinds of verdict"))
    words = [
        *lab_staleness.WORD,
        *lab_staleness.WORD.values(),
        *(Check(statement="", holds=h, found="").word for h in HOLDS),
    ]
    assert all(word in note for word in words)
