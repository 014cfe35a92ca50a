"""Verdicts on what SPIRE claims follow from runs: planted results that must flip them do."""

from __future__ import annotations

import numpy as np
import pytest

from paper_repro import lab_interaction, lab_partial, lab_replay, lab_results, lab_staleness
from paper_repro.__main__ import app
from paper_repro.lab_compute import compute_after, reward_at, updates_for
from paper_repro.lab_results import bundled, changed, results_of
from paper_repro.lab_tables import WORDS, arm_row, compare, judged_better, judged_not_worse, settled, together
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.stats.interval import Interval
from testbed.training.designs import aliases
from testbed.training.replay_moments import ReplayMoments
from tests.paper_repro.laboratory_worlds import planted

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
STUDIES = ("staleness", "partial", "replay", "interaction")


def found(module, results, monkeypatch, **replaced):
    """The finding of a study's table made of planted results."""
    monkeypatch.setattr(module, "results_of", lambda *_: results)
    for name, function in replaced.items():
        monkeypatch.setattr(module, name, function)
    return module.table(Setting(scale="tiny"))


def verdicts(finding):
    """Claim -> verdict."""
    return {claim["claim"]: claim["verdict"] for claim in finding.claims}


# ------------------------------------------------------------------------------------------------ words
def test_a_better_arm_never_has_a_worse_verdict():
    for judge in (judged_better, judged_not_worse):
        for width in (0.01, 0.1, 0.4):
            words = [judge(Interval(low, low + width, 0.95, "")) for low in np.linspace(-0.6, 0.6, 97)]
            places = [WORDS.index(word) for word in words]
            assert places == sorted(places) and {words[0], words[-1]} == {NOT, REPRODUCED}


def test_the_weakest_part_decides():
    assert together(REPRODUCED, REPRODUCED) == REPRODUCED
    assert together(REPRODUCED, NOISE) == NOISE
    assert together(NOISE, NOT, REPRODUCED) == NOT


def test_two_seeds_decide_nothing():
    claims = [{"claim": "c", "verdict": REPRODUCED, "found": "f", "to tell": ""}]
    assert settled(claims, 10) == claims
    (few,) = settled(claims, 2)
    assert few["verdict"] == NOISE and "5 seeds" in few["to tell"]


def test_arms_are_compared_by_seed():
    easy = np.linspace(0.1, 0.9, 10).tolist()  # seeds differ by more than arms do
    ahead = [reward + 0.02 for reward in easy]
    assert compare(ahead, easy, "paired").told
    assert not compare(ahead[::-1], easy, "not paired").told
    assert "P(better)" in arm_row([0.5] * 4, [0.5] * 4, [0] * 4, [0.4] * 4, "row")


# ------------------------------------------------------------------------------------------------ staleness
CLAIM = "SPIRE remains stable at staleness 4, where AReaL+PPO collapses"
CLIPPED = ("ppo_clip", "decoupled_ppo")


def stale(spire, clipped, spread=0.02):
    """Rewards at staleness 4 and more of spire and of the clipped rules; everything else earns .9."""

    def number(levels, seed):
        late = int(levels["staleness"]) >= 4
        return spire if late and levels["rule"] == "spire" else clipped if late and levels["rule"] in CLIPPED else 0.9

    few = {"rule": ("none", "spire", *CLIPPED), "staleness": ("0", "4")}
    return planted(
        "staleness", number, spread=spread, collapsed=lambda levels, seed: number(levels, seed) < 0.3, keep=few
    )


@pytest.mark.parametrize(
    ("spire", "clipped", "spread", "stable", "claim"),
    [
        (0.9, 0.1, 0.02, REPRODUCED, REPRODUCED),  # as the abstract says
        (0.9, 0.9, 0.02, REPRODUCED, NOT),  # nothing collapses
        (0.6, 0.1, 0.02, NOT, NOT),  # spire loses too much by itself
        (0.9, 0.5, 0.02, REPRODUCED, NOT),  # worse, but no collapse
        (0.82, 0.1, 0.3, NOISE, NOISE),  # seeds differ too much to tell
    ],
)
def test_stability_under_staleness(spire, clipped, spread, stable, claim, monkeypatch):
    words = verdicts(found(lab_staleness, stale(spire, clipped, spread), monkeypatch))
    assert words["SPIRE remains stable at staleness 4"] == stable
    assert words[CLAIM] == claim


def test_a_level_survived_counts_only_if_all_below_it_are():
    rewards = {"none": {"4": 0.5}, "exact": {"16": 0.6}, "tis": {"1": 0.3}, "gspo": {"8": 0.82}}
    results = planted(
        "staleness", lambda levels, seed: rewards.get(levels["rule"], {}).get(levels["staleness"], 0.9),
        shape=lambda levels, seed: {"collapsed": levels["rule"] == "cispo" and levels["staleness"] == "2"},
        keep={"rule": (*rewards, "cispo", "spire")},
    )  # fmt: skip
    table = {rule: lab_staleness.survived(results, rule) for rule in results.levels("rule")}
    ends = {rule: (row["survives up to"], row["surely lost at"]) for rule, row in table.items()}
    assert ends["none"] == ("2", "4") and ends["exact"] == ("8", "16") and ends["tis"] == ("none", "1")
    assert ends["cispo"] == ("1", "2")  # the same reward, but it collapsed
    assert ends["spire"] == ("16", "none seen") and ends["gspo"] == ("16", "none seen")  # a loss of .08 is within .1


# ------------------------------------------------------------------------------------------------ partial rollouts
def test_partial_rollouts(monkeypatch):
    def results(spire_many, clip, guilty):
        def number(levels, seed):
            if levels["sampling"] in ("post_hoc", "overwritten", "rescored", "finished_first"):
                return guilty
            if levels["sampling"] in lab_partial.PARTIAL:
                return {"spire": spire_many, "ppo_clip": clip}.get(levels["rule"], 0.9)
            return 0.9

        def shape(levels, seed):
            over = 0.1 if levels["sampling"] == "post_hoc" and guilty < 0.9 else 0.0
            return {"curve_reward": [number(levels, seed) + over] * 3}

        return planted("partial", number, shape=shape, keep={"rule": ("none", "spire", "ppo_clip", "sequence_product")})

    finding = found(lab_partial, results(0.9, 0.7, 0.5), monkeypatch)
    assert set(verdicts(finding).values()) == {REPRODUCED}
    assert {check.holds for check in finding.checks} == {True}
    finding = found(lab_partial, results(0.7, 0.9, 0.9), monkeypatch)
    assert set(verdicts(finding).values()) == {NOT}
    assert {check.holds for check in finding.checks} == {False}
    assert finding.curves["sampling"]["many"]["segments"] == 1.5


# ------------------------------------------------------------------------------------------------ replay
COST = {"0": 1.0, "0.1": 0.9, "0.25": 0.8, "0.5": 0.55, "0.75": 0.35, "0.9": 0.2}
MOMENTS = [
    ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
]


def replayed(best, height=0.9, others=0.5):
    """Runs of which those with some shares earn more than all others, from the first evaluation on."""

    def shape(levels, seed):
        kind, share = levels["share"].split()
        reward = height if kind == "uniform" and share in best else others
        reward += 0.01 * (seed % 3)
        return {
            "evaluations": [0.5] + [reward] * 40, "curve_engine_seconds": [COST[share]] * 15, "curve_trainer_seconds": [0.1] * 15,
        }  # fmt: skip

    return planted("replay", lambda levels, seed: others, shape=shape, keep={"rule": ("spire",)})


@pytest.mark.parametrize(
    ("best", "height", "verdict"),
    [
        (("0.25", "0.5"), 0.9, REPRODUCED),  # the share predicted is .31, its neighbors earn most
        (("0.5",), 0.9, NOT),  # one neighbor alone earns more
        (("0.9",), 0.9, NOT),  # a cheaper share earns more
        (("0",), 0.9, NOT),  # dearer per update, and still more reward at the same compute
        (("0.25",), 0.5, REPRODUCED),  # all alike: none is better
    ],
)
def test_the_predicted_share(best, height, verdict, monkeypatch):
    finding = found(lab_replay, replayed(best, height), monkeypatch, pilot=lambda *_, **__: MOMENTS * 9)
    assert set(verdicts(finding).values()) == {verdict}
    assert all("0.31" in claim["claim"] for claim in finding.claims)
    assert finding.curves["rules"]["spire"]["predicted"] == pytest.approx(0.3077, abs=1e-4)


def test_what_is_no_better_at_the_same_compute_may_be_better_at_the_same_updates(monkeypatch):
    """A dearer share that earns more per update is no argument against a cheaper one at equal updates."""
    results = replayed(("0",), 0.9)
    for row in results.rows:
        if row["factor_share"] == "uniform 0":  # late: what it earns, it earns after the compute of the others is spent
            row["evaluations"] = [0.5] * 7 + [0.9] * 34
    updates = lab_replay.common_updates(results)
    frontier = {level: lab_replay.point(results, "spire", level, updates) for level in results.levels("share")}
    budget = 0.55 * updates * 0.5
    spent = {level: lab_replay.rewards_at_compute(results, "spire", level, budget) for level in results.levels("share")}
    assert lab_replay.judged_share("spire", 0.3, frontier, spent)["verdict"] == REPRODUCED


def test_compute_is_counted_along_the_curve():
    row = {
        "curve_engine_seconds": [1.0, 2.0, 4.0], "curve_trainer_seconds": [0.5] * 3, "evaluations": [0.1, 0.2, 0.3, 0.4],
        "outcome": "finished", "updates": 45,
    }  # fmt: skip
    assert compute_after(row, 45, 4) == 1.5 * 3 + 2.5
    for seconds in (0.7, 5.0, 9.3):
        assert compute_after(row, 45, updates_for(row, 45, seconds)) == pytest.approx(seconds, abs=1e-5)
    assert updates_for(row, 45, 1e9) == 45
    assert reward_at(row, 10, 29.9) == pytest.approx(0.2) and reward_at(row, 10, 5) == 0.1


# ------------------------------------------------------------------------------------------------ interaction
def test_effects_are_those_planted_and_so_are_their_aliases(monkeypatch):
    names = list(bundled("interaction").factors)
    (word,) = bundled("interaction").words
    planted_effects = {
        ("staleness",): -0.1,
        ("correction",): 0.08,
        ("staleness", "replay"): -0.06,
        tuple(names[1:]): 0.04,
    }

    def number(levels, seed):
        factors = bundled("interaction").factors
        sign = {name: 1 if list(factors[name]).index(level) else -1 for name, level in levels.items()}
        return 0.6 + sum(
            size / 2 * np.prod([sign[name] for name in effect]) for effect, size in planted_effects.items()
        )

    results = planted("interaction", number, spread=0.03)
    finding = found(lab_interaction, results, monkeypatch)
    drawn = {tuple(effect["factors"]): effect for effect in finding.curves["effects"]}
    hidden = tuple(set(word) - set(names[1:]))  # what the effect of the other four cannot be told from
    for effect, size in planted_effects.items():
        place = hidden if len(effect) == len(names) - 1 else effect
        both = size + (planted_effects[("staleness",)] if place == ("staleness",) and effect != place else 0)
        if place == effect == ("staleness",):
            both = size + planted_effects[tuple(names[1:])]
        assert drawn[place]["raw"] == pytest.approx(both, abs=0.01), effect
        assert drawn[place]["raw_low"] <= drawn[place]["raw"] <= drawn[place]["raw_high"]
    assert " x ".join(names[1:]) in drawn[("staleness",)]["aliases"]
    assert drawn[("mismatch", "rate")]["raw"] == pytest.approx(0.0, abs=0.01)
    assert [check.word for check in finding.checks] == ["holds", "does not hold", "holds"]
    assert verdicts(finding)["SPIRE's weights repair staleness, mismatch and replay with one instrument"] == REPRODUCED


def test_a_standardized_effect_is_in_units_of_the_spread_between_seeds(monkeypatch):
    sizes = []
    for spread in (0.02, 0.04):
        results = planted(
            "interaction", lambda levels, seed: 0.1 * (levels["correction"] == "spire"), spread=spread, seeds=40
        )
        effects = {e["name"]: e for e in found(lab_interaction, results, monkeypatch).curves["effects"]}
        sizes.append(effects["correction"]["size"] * spread)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert sizes[0] == pytest.approx(0.1 * 3**0.5, rel=0.1)  # uniform noise of half-width w has sd w / sqrt 3


def test_no_two_effects_of_two_factors_are_aliases():
    study = bundled("interaction")
    assert not any(aliases(list(study.factors), study.words).values())


# ------------------------------------------------------------------------------------------------ results
@pytest.mark.parametrize("name", STUDIES)
def test_results_that_are_missing_are_said_to_be_with_the_command_that_makes_them(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab_results, "RESULTS", tmp_path)
    arguments = ["run", f"spire_{name}", "--scale", "tiny", "--out", str(tmp_path / "out")]
    assert run_command(app, "paper-repro", arguments) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"testbed sweep {name} --results paper_repro/results/study_{name}.parquet" in printed


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_what_it_cannot_tell_and_has_ten_seeds(name):
    study = bundled(name)
    assert study.seeds >= 10 and len(study.limits) > 200 and study.question.endswith("?")
    assert len({cell.id for cell in study.cells()}) == len(study.cells())


def test_results_of_other_settings_are_called_so(tmp_path, monkeypatch):
    few = {"rule": ("spire",), "staleness": ("0", "4")}
    results = results_of("staleness", Setting(scale="tiny", smoke=True, out=tmp_path), few)
    assert [(row["factor_staleness"], row["seed"]) for row in results.rows] == [("0", 0), ("4", 0), ("0", 1), ("4", 1)]
    assert "made with other" in changed(bundled("staleness"), results.about)
    monkeypatch.setattr(lab_results, "RESULTS", tmp_path)
    assert "made with other" in results_of("staleness", Setting(scale="tiny")).source


def test_what_is_not_there_is_refused():
    results = planted("staleness", lambda levels, seed: 0.5, seeds=2)
    with pytest.raises(InputError, match="did you mean"):
        results.values("final", rule="spir")
    with pytest.raises(InputError, match="factor"):
        results.values("final", rules="spire")
    assert results.values(lambda row: row["seed"], rule="spire", staleness=4) == [0.0, 1.0]
