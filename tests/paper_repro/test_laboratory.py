"""Verdicts on what SPIRE claims follow from runs: planted results that must flip them do."""

from __future__ import annotations

import numpy as np
import pytest

from paper_repro import lab_interaction, lab_partial, lab_replay, lab_results
from paper_repro.__main__ import app
from paper_repro.lab_compute import compute_after, reward_at, updates_for
from paper_repro.lab_results import bundled, changed, results_of
from paper_repro.lab_tables import WORDS, arm_row, compare, judged_better, judged_not_worse, settled, together
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.stats.interval import Interval
from testbed.training import results_file
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


# ------------------------------------------------------------------------------------------------ partial rollouts
RULES = {"rule": ("none", "spire", "ppo_clip", "sequence_product")}


def partial(reward, over=0.0):
    """Runs in which a way of sampling and a rule earn `reward(sampling, rule)`; post_hoc's batches look better by `over`."""

    def number(levels, seed):
        return reward(levels["sampling"], levels["rule"])

    def shape(levels, seed):
        return {"curve_reward": [number(levels, seed) + over * (levels["sampling"] == "post_hoc")] * 3}

    return planted("partial", number, shape=shape, keep=RULES)


def test_partial_rollouts(monkeypatch):
    def reward(spire_many, clip, guilty):
        def of(sampling, rule):
            if sampling in lab_partial.CONTROLS:
                return guilty
            return {"spire": spire_many, "ppo_clip": clip}.get(rule, 0.9) if sampling in lab_partial.PARTIAL else 0.9

        return of

    finding = found(lab_partial, partial(reward(0.9, 0.7, 0.5), over=0.1), monkeypatch)
    assert set(verdicts(finding).values()) == {REPRODUCED}
    assert {check.holds for check in finding.checks} == {True}
    finding = found(lab_partial, partial(reward(0.7, 0.9, 0.9)), monkeypatch)
    assert set(verdicts(finding).values()) == {NOT}
    ours = [check for check in finding.checks if check.statement.startswith("ours: ")]
    assert {check.holds for check in finding.checks if check not in ours} == {False} and len(ours) == 3
    assert finding.curves["sampling"]["many"]["segments"] == 1.5


def test_what_split_groups_cost_is_not_laid_at_the_door_of_resuming(monkeypatch):
    """Where groups are split, SPIRE earns .7, resumed or not: against whole responses that looks like a loss by resuming."""
    results = partial(lambda sampling, rule: 0.7 if sampling in ("resumed", "split") else 0.9)
    words = verdicts(found(lab_partial, results, monkeypatch))
    claim = "ours: SPIRE trains on partial rollouts (resumed) as on {}, to within 0.05"
    assert words[claim.format("split")] == REPRODUCED and words[claim.format("whole")] == NOT
    results = partial(lambda sampling, rule: 0.7 if sampling == "resumed" else 0.9)
    assert verdicts(found(lab_partial, results, monkeypatch))[claim.format("split")] == NOT


def test_where_all_rules_are_one_a_difference_is_a_fault(monkeypatch):
    def aa(whole):
        finding = found(
            lab_partial, partial(lambda s, rule: whole if (s, rule) == ("whole", "spire") else 0.9), monkeypatch
        )
        return [check.word for check in finding.checks if "A/A" in check.statement]

    assert aa(0.9) == ["holds"] and aa(0.6) == ["does not hold"]


@pytest.mark.parametrize(("after_one", "word"), [(0.9, "holds"), (0.7, "does not hold"), (0.99, "does not hold")])
def test_where_responses_are_resumed_is_judged_both_ways(after_one, word, monkeypatch):
    results = partial(lambda sampling, rule: after_one if sampling == "blind_1" else 0.9)
    checks = {check.statement: check.word for check in found(lab_partial, results, monkeypatch).checks}
    statement = "ours: {} trains as blind does, to within 0.05 (rule spire)"
    assert checks[statement.format("blind_1")] == word and checks[statement.format("blind_5")] == "holds"


# ------------------------------------------------------------------------------------------------ replay
COST = {"0": 1.0, "0.1": 0.9, "0.2": 0.85, "0.25": 0.8, "0.3": 0.75, "0.5": 0.55, "0.75": 0.35, "0.9": 0.2}
MOMENTS = [
    ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
]


def replayed(best, height=0.9, others=0.5, of="uniform"):
    """Runs of which those with some shares of one kind earn more than all others, from the first evaluation on."""

    def shape(levels, seed):
        kind, share = levels["share"].split()
        reward = height if kind == of and share in best else others
        reward += 0.01 * (seed % 3)
        return {
            "evaluations": [0.5] + [reward] * 40, "curve_engine_seconds": [COST[share]] * 15, "curve_trainer_seconds": [0.1] * 15,
        }  # fmt: skip

    return planted("replay", lambda levels, seed: others, shape=shape, keep={"rule": ("spire",)})


def shares_judged(results, monkeypatch, moments=MOMENTS):
    """Kind of replay -> the claim about its predicted share."""
    finding = found(lab_replay, results, monkeypatch, pilot=lambda *_, **__: [moments * 5, moments * 4])
    return {
        kind: claim for claim in finding.claims for kind in lab_replay.KINDS if f"of {kind} replay" in claim["claim"]
    }


@pytest.mark.parametrize(
    ("best", "height", "verdict"),
    [
        (("0.25", "0.3", "0.5"), 0.9, REPRODUCED),  # the share predicted is .31, its neighbors earn most
        (("0.5",), 0.9, NOT),  # one neighbor alone earns more
        (("0.9",), 0.9, NOT),  # a cheaper share earns more
        (("0",), 0.9, NOT),  # dearer per update, and still more reward at the same compute
        (("0.25",), 0.5, REPRODUCED),  # all alike: none is better
    ],
)
def test_the_predicted_share(best, height, verdict, monkeypatch):
    claims = shares_judged(replayed(best, height), monkeypatch)
    assert claims["uniform"]["verdict"] == verdict
    assert all("share 0.31" in claim["claim"] and "half-width" in claim["found"] for claim in claims.values())
    finding = found(lab_replay, replayed(best), monkeypatch, pilot=lambda *_, **__: [MOMENTS])
    drawn = finding.curves["rules"]["spire"]
    assert drawn["predicted"] == drawn["success_predicted"] == pytest.approx(0.3077, abs=1e-4)


def test_each_kind_of_replay_is_judged_by_its_own_runs(monkeypatch):
    claims = shares_judged(replayed(("0.9",), of="success"), monkeypatch)
    assert claims["success"]["verdict"] == NOT and claims["uniform"]["verdict"] == REPRODUCED
    claims = shares_judged(replayed(("0.9",), of="uniform"), monkeypatch)
    assert claims["success"]["verdict"] == REPRODUCED and claims["uniform"]["verdict"] == NOT


def test_a_share_above_all_that_were_run_is_judged_at_the_largest(monkeypatch):
    free = [
        ReplayMoments(v_fresh=1.0, v_replay=1.0, bias_squared=0.0, cost_fresh=1.0, cost_replay=0.0001, responses=16)
    ]
    claims = shares_judged(replayed(("0.9",)), monkeypatch, free)
    assert claims["uniform"]["verdict"] == REPRODUCED and "judged at 0.9" in claims["uniform"]["found"]
    assert "judged at" not in shares_judged(replayed(("0.9",)), monkeypatch)["uniform"]["found"]


def test_pilots_that_disagree_make_the_prediction_uncertain():
    """Batches of one run agree and runs do not: drawing batches alone would call two runs twenty observations."""
    biased = [
        ReplayMoments(**{name: getattr(MOMENTS[0], name) for name in MOMENTS[0].__slots__} | {"bias_squared": 4.0})
    ]
    _, low, high = lab_replay.predicted([MOMENTS * 10, biased * 10])
    _, least, most = lab_replay.predicted([MOMENTS + biased] * 10)
    assert high - low > 2 * (most - least) > 0


def test_what_is_no_better_at_the_same_compute_may_be_better_at_the_same_updates(monkeypatch):
    """A dearer share that earns more per update is no argument against a cheaper one at equal updates."""
    results = replayed(("0",), 0.9)
    for row in results.rows:
        if row["factor_share"] == "uniform 0":  # late: what it earns, it earns after the compute of the others is spent
            row["evaluations"] = [0.5] * 7 + [0.9] * 34
    updates = lab_replay.common_updates(results)
    levels = lab_replay.of_kind(dict.fromkeys(results.levels("share")), "uniform")
    frontier = {level: lab_replay.point(results, "spire", level, updates) for level in levels}
    budget = 0.55 * updates * 0.5
    spent = {level: lab_replay.rewards_at_compute(results, "spire", level, budget) for level in levels}
    assert lab_replay.judged_share("spire", "uniform", 0.3, frontier, spent)["verdict"] == REPRODUCED


def test_compute_is_counted_along_the_curve():
    row = {
        "curve_engine_seconds": [1.0, 2.0, 4.0], "curve_trainer_seconds": [0.5] * 3, "evaluations": [0.1, 0.2, 0.3, 0.4],
        "outcome": "finished", "updates": 45,
    }  # fmt: skip
    assert compute_after(row, 45, 4) == 1.5 * 3 + 2.5
    for seconds in (0.7, 5.0, 9.3):
        assert compute_after(row, 45, updates_for(row, 45, seconds)) == pytest.approx(seconds, abs=1e-5)
    assert updates_for(row, 45, 1e9) == 45


def test_rewards_at_equal_compute_look_back_over_equal_parts_of_it():
    """Two runs whose rewards are one line along the way: four evaluations or forty, the reward of the end is the same."""
    few, many = (
        {"evaluations": np.linspace(0, 1, n + 1).tolist(), "outcome": "finished", "updates": 10 * n} for n in (4, 40)
    )
    assert reward_at(few, 10, 40) == pytest.approx(reward_at(many, 10, 400), abs=1e-12)
    assert reward_at(few, 10, 40) == pytest.approx(0.85, abs=1e-12)
    assert (
        reward_at(few, 10, 30) < reward_at(few, 10, 35) < reward_at(few, 10, 40)
    )  # and does not wait for an evaluation
    assert reward_at(few | {"outcome": "diverged"}, 10, 40) == 0.0


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
    assert [check.word for check in finding.checks[:3]] == ["holds", "does not hold", "holds"]
    assert verdicts(finding) == {ONE_INSTRUMENT: REPRODUCED}


ONE_INSTRUMENT = "SPIRE's weights repair staleness and replay with one instrument"


@pytest.mark.parametrize(
    ("agree", "differ", "late", "word", "more"),
    [
        (0.1, 0.1, 0.0, REPRODUCED, None),
        (0.1, -0.3, 0.0, REPRODUCED, "does not hold"),  # what it does to a mismatch is not claimed
        (0.0, 0.3, 0.0, NOT, "holds"),  # it pays where engines differ, and there alone
        (0.1, 0.1, -0.3, NOT, None),  # it pays, but least where there is most to correct
    ],
)
def test_the_claim_is_judged_where_engines_agree(agree, differ, late, word, more, monkeypatch):
    def number(levels, seed):
        pays = agree if levels["mismatch"] == "none" else differ
        return 0.5 + (levels["correction"] == "spire") * (pays + late * (levels["staleness"] == "8"))

    finding = found(lab_interaction, planted("interaction", number, seeds=20), monkeypatch)
    assert verdicts(finding) == {ONE_INSTRUMENT: word}
    assert "replay x rate" in finding.claims[0]["found"]
    last = finding.checks[-1]
    assert "mismatch" in last.statement and (more is None or last.word == more)


def test_intervals_of_the_claim_hold_together(monkeypatch):
    results = planted("interaction", lambda levels, seed: 0.5, spread=0.1)
    effects, _ = lab_interaction.claimed_effects(results)
    assert [effect.raw.interval.level for effect in effects] == [pytest.approx(1 - 0.05 / 3)] * 3


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


@pytest.mark.parametrize("name", ["staleness", "staleness_fast", "smallest_staleness", "partial", "interaction"])
def test_a_guess_counts_as_a_collapse_where_guessing_pays(name):
    """On parity a guess earns .5: a run that had reached 1 and guesses at its end must be below the share that collapse means."""
    assert all(cell.config.task == "parity" and cell.config.collapse > 0.5 for cell in bundled(name).cells(1))


# ------------------------------------------------------------------------------------------------ results
@pytest.mark.parametrize("name", STUDIES)
def test_results_that_are_missing_are_said_to_be_with_the_command_that_makes_them(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab_results, "RESULTS", tmp_path)
    arguments = ["run", f"spire_{name}", "--scale", "tiny", "--out", str(tmp_path / "out")]
    assert run_command(app, "paper-repro", arguments) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"testbed sweep {name} --results paper_repro/results/study_{name}.parquet" in printed


@pytest.mark.parametrize("name", [*STUDIES, "staleness_fast"])
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


def test_the_smallest_study_tells_rules_apart():
    """Three rules, three ages, five seeds: told at two ages, and nothing is told where nothing is stale."""
    results = results_of("smallest_staleness", Setting(scale="tiny"))
    told = {
        age: compare(
            results.values("final", rule="ppo_clip", staleness=age),
            results.values("final", rule="none", staleness=age),
            "smallest",
            age,
        )
        for age in (0, 2, 8)
    }
    assert len(results.rows) == 45 and [age for age, found in told.items() if found.told] == [2, 8]
    assert told[8].difference.interval.low > 0.2


def test_results_without_a_seed_are_refused(monkeypatch):
    """Arms are compared by position: a row that is missing would pair every later seed with another one."""
    about, rows = results_file.read_results(lab_results.RESULTS / "study_smallest_staleness.parquet")
    assert len(results_of("smallest_staleness", Setting(scale="tiny")).rows) == len(rows)
    monkeypatch.setattr(results_file, "read_results", lambda path: (about, rows[1:]))
    with pytest.raises(InputError, match="every seed of 5 for every combination; found seeds 1, 2, 3, 4 of"):
        results_of("smallest_staleness", Setting(scale="tiny"))
