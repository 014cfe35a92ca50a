"""Figures of training runs: what is drawn is the record, nothing is left out, and equal records give equal files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.colors import to_hex

from figures import spire_interaction, spire_partial, spire_replay, spire_staleness
from figures.__main__ import NoRecord, draw_one
from figures.style import lightness, rule_line
from paper_repro import lab_interaction, lab_partial, lab_replay, lab_staleness
from paper_repro.study import Setting
from testbed.core.records import RunRecord
from testbed.training.replay_moments import ReplayMoments
from tests.paper_repro.laboratory_worlds import planted

LABORATORY = ("spire_staleness", "spire_partial", "spire_replay", "spire_interaction")
SCRIPTS = (spire_staleness, spire_partial, spire_replay, spire_interaction)
MODULES = {"staleness": lab_staleness, "partial": lab_partial, "replay": lab_replay, "interaction": lab_interaction}
FEW = {
    "rule": ("none", "spire", "ppo_clip", "decoupled_ppo", "sequence_product"), "staleness": ("0", "4", "16"),
}  # fmt: skip
BIAS = {"uniform": 0.0625, "success": 0.09}  # squared, of what is replayed: each kind has a share of its own


def moments(kind):
    """Pilot runs that differ, so that the predicted share has an interval."""
    one = {"v_replay": 1.25, "bias_squared": BIAS[kind], "cost_fresh": 1.0, "cost_replay": 0.25, "responses": 16}
    return [[ReplayMoments(v_fresh=1 + run / 50, **one)] * 4 for run in range(4)]


def found(name):
    """The finding of a study whose rewards were planted."""

    def reward(study, levels, seed):
        slope = {"staleness": 1, "staleness_fast": 2}.get(study, 0)
        late = slope * int(levels.get("staleness", "0")) / 60
        return 0.9 - late * (1.5 if levels.get("rule") == "none" else 1)

    def shape(levels, seed):
        kind, share = levels["share"].split() if "share" in levels else ("", "0")
        worse = (0.1 if kind == "success" else 0.2) * float(share)
        paid = {"curve_engine_seconds": [0.2 * (1 - float(share))] * 15, "curve_trainer_seconds": [0.1] * 15}
        return {"evaluations": [0.5, *[0.9 - worse + seed / 100] * 40], **paid}

    def results(study, *_):
        few = {factor: levels for factor, levels in FEW.items() if factor == "rule" or name == "staleness"}
        fell = lambda levels, seed: reward(study, levels, seed) < 0.5 + seed / 100  # noqa: E731
        own = lambda levels, seed: reward(study, levels, seed)  # noqa: E731
        return planted(study, own, shape=shape, seeds=5, keep=few, collapsed=fell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULES[name], "results_of", results)
        if name == "replay":
            patch.setattr(lab_replay, "pilot", lambda results, rule, kind, **_: moments(kind))
        return MODULES[name].table(Setting(scale="tiny"))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("laboratory")
    for name in LABORATORY:
        finding = found(name.removeprefix("spire_"))
        RunRecord(result={"name": name, **finding.plain()}, provenance={}).save(folder / f"{name}_tiny.json")
    return folder


@pytest.fixture
def figures(monkeypatch):
    """Return every figure that is saved while a test runs."""
    kept = []
    for script in SCRIPTS:
        monkeypatch.setattr(script, "save", lambda figure, *_: kept.append(figure) or [])
    return kept


def curves(records, name):
    return json.loads((records / f"{name}_tiny.json").read_text())["result"]["curves"]


def segments(axes):
    """Ends of the lines that `hlines` and `vlines` drew, a list for each call."""
    return [np.array(one.get_segments()).tolist() for one in axes.collections if hasattr(one, "get_segments")]


@pytest.mark.parametrize("name", LABORATORY)
def test_the_numbers_drawn_are_the_record_and_twice_the_same(name, records, tmp_path):
    for folder in ("a", "b"):
        draw_one(name, [records], tmp_path / folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    drawn = {f"{name}_tiny": curves(records, name)}
    if name == "spire_staleness":
        drawn[f"{name}_tiny_fast"] = drawn[f"{name}_tiny"].pop(lab_staleness.FAST)
    assert set(files) == {f"{stem}.{kind}" for stem in drawn for kind in ("pdf", "png", "json")}
    for stem, numbers in drawn.items():
        assert json.loads(files[f"{stem}.json"])["curves"] == numbers
        assert len(files[f"{stem}.png"]) < 110_000


@pytest.mark.parametrize("name", LABORATORY)
def test_without_a_record_the_command_is_named(name, tmp_path):
    with pytest.raises(NoRecord, match=f"python -m paper_repro run {name} --scale tiny`"):
        draw_one(name, [tmp_path], tmp_path)


# ------------------------------------------------------------------------------------------------ staleness
def test_every_rule_of_both_rates_has_a_panel_with_its_rewards_intervals_and_collapses(records, tmp_path, figures):
    draw_one("spire_staleness", [records], tmp_path)
    found = curves(records, "spire_staleness")
    blocks = {lab_staleness.STUDY: found, lab_staleness.FAST: found.pop(lab_staleness.FAST)}
    for figure, (study, block) in zip(figures, blocks.items(), strict=True):
        title = figure.get_suptitle()
        assert title.startswith("Final reward against staleness") and f"(study {study}, " in title
        assert f"{len(block['rules'])} rules, {block['seeds']} seeds" in title
        left = figure.get_axes()[0]  # the others share its ticks
        assert [float(label.get_text()) for label in left.get_yticklabels()] == list(left.get_yticks())
        drawn, by_title = block["rules"], {axes.get_title(loc="left"): axes for axes in figure.get_axes()}
        assert set(drawn) == set(by_title) - {""} and sum(drawn["none"]["collapsed"]) > 0
        for rule, own in drawn.items():
            axes = by_title[rule]
            heights = [list(line.get_ydata()) for line in axes.get_lines()]
            assert heights == ([drawn["none"]["reward"]] if rule != "none" else []) + [own["reward"]]
            corners = {(round(x, 9), round(y, 9)) for x, y in axes.collections[0].get_paths()[0].vertices}
            ends = {(place, round(end[place], 9)) for end in (own["low"], own["high"]) for place in range(3)}
            assert corners == ends
            counts = {text.get_position()[0]: float(text.get_text()) for text in axes.texts}
            assert counts == {place: count for place, count in enumerate(own["collapsed"]) if count}
            assert all(text.get_position()[1] < 0 for text in axes.texts)  # where no reward is
            assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "4", "16"]


def test_color_tells_a_rule_from_no_correction_and_nothing_else(records, tmp_path, figures):
    """Rules are told apart by their panels: a color that some share and others do not would say what is not so."""
    draw_one("spire_staleness", [records], tmp_path)
    looks = {}
    for figure in figures:
        for axes in figure.get_axes():
            for line in axes.get_lines() if axes.get_title(loc="left") else ():
                own = line.get_marker() != "None" and axes.get_title(loc="left") != spire_staleness.ALONE
                looks.setdefault(own, set()).add((to_hex(line.get_color()), line.get_linestyle()))
    assert {len(found) for found in looks.values()} == {1}
    (rule,), (alone,) = looks[True], looks[False]
    assert rule[1] != alone[1] and abs(lightness(rule[0]) - lightness(alone[0])) > 10  # also in grey


# ------------------------------------------------------------------------------------------------ partial rollouts
def test_every_rule_has_a_panel_with_every_way_of_writing(records, tmp_path, figures):
    draw_one("spire_partial", [records], tmp_path)
    found = curves(records, "spire_partial")
    panels = {axes.get_title(loc="left"): axes for axes in figures[0].get_axes()}
    assert set(panels) - {""} == {"none", "spire", "ppo_clip", "sequence_product"}
    labels = [label.get_text() for label in panels["none"].get_yticklabels()]
    rows = dict(zip([label.split(" ")[0] for label in labels], panels["none"].get_yticks(), strict=True))
    assert set(rows) == set(found["sampling"]) and len({*rows.values()}) == len(found["sampling"])
    assert all(label.endswith("(1.5, 2.0)") for label in labels)
    for rule, axes in panels.items():
        if not rule:
            continue
        own = {rows[one]: entry["rules"][rule] for one, entry in found["sampling"].items()}
        drawn = [line for line in axes.get_lines() if len(line.get_xdata())]  # the key has none
        dots = [line for line in drawn if line.get_marker() != "None"]
        assert {dot.get_ydata()[0]: dot.get_xdata()[0] for dot in dots} == {y: one["reward"] for y, one in own.items()}
        assert {to_hex(dot.get_color()) for dot in dots} == {rule_line(rule).color}
        whiskers = {line.get_ydata()[0]: list(line.get_xdata()) for line in drawn if line not in dots}
        assert whiskers == {y: [one["low"], one["high"]] for y, one in own.items()}
        controls = {dot.get_ydata()[0] for dot in dots if dot.get_marker() == "D"}
        assert controls == {rows[control] for control in lab_partial.CONTROLS}
        for twin, others in spire_partial.TWINS.items():
            ((x, top), (_, bottom)) = next(one[0] for one in segments(axes) if one[0][0][1] == rows[twin])
            passed = {one for one, y in rows.items() if top <= y <= bottom}
            assert x == own[rows[twin]]["reward"] and passed == {twin, *others}


def test_twins_are_those_that_the_verdicts_compare():
    pairs = [(other, twin) for twin, others in spire_partial.TWINS.items() for other in others]
    judged = {level: twins[0] for level, twins in lab_partial.PARTIAL.items()}
    judged |= {control: twin for control, (twin, _) in lab_partial.CONTROLS.items()}
    judged |= dict.fromkeys(lab_partial.LENGTHS, lab_partial.INNOCENT)
    assert sorted(pairs) == sorted(judged.items())


# ------------------------------------------------------------------------------------------------ replay
def test_both_curves_have_their_points_and_intervals(records, tmp_path, figures):
    draw_one("spire_replay", [records], tmp_path)
    for place, rule in enumerate(curves(records, "spire_replay")["rules"].values()):
        pair = figures[0].get_axes()[2 * place : 2 * place + 2]
        for axes, x, names in zip(
            pair,
            ("compute", "share"),
            (("reward", "low", "high"), ("at_budget", "budget_low", "budget_high")),
            strict=True,
        ):
            for kind, look in spire_replay.LOOK.items():
                middle, low, high = ([point[name] for point in rule[kind]] for name in names)
                places = [point[x] for point in rule[kind]]
                assert [list(one) for one in zip(places, middle, strict=True)] in [
                    line.get_xydata().tolist() for line in axes.get_lines() if line.get_color() == look["color"]
                ]
                ends = [[[at, a], [at, b]] for at, a, b in zip(places, low, high, strict=True)]
                assert ends in segments(axes)


def test_numbers_are_the_shares_above_or_below_their_points_and_none_meet(records, tmp_path, figures):
    draw_one("spire_replay", [records], tmp_path)
    rule, left = next(iter(curves(records, "spire_replay")["rules"].values())), figures[0].get_axes()[0]
    figures[0].canvas.draw()
    for kind, height in spire_replay.NUMBERS.items():
        texts = [text for text in left.texts if text.get_position()[1] == height]
        shares = {point["compute"]: point["share"] for point in rule[kind]}
        assert {text.get_text() for text in texts} >= {"0", "0.5", "0.75", "0.9"}
        assert all(float(text.get_text()) == shares[text.get_position()[0]] for text in texts)
        boxes = [text.get_window_extent() for text in texts]
        assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


def test_the_predicted_share_of_each_kind_is_marked_in_both_comparisons(records, tmp_path, figures):
    draw_one("spire_replay", [records], tmp_path)
    for place, rule in enumerate(curves(records, "spire_replay")["rules"].values()):
        left, right = figures[0].get_axes()[2 * place : 2 * place + 2]
        assert rule["predicted"] > rule["success_predicted"] + 0.01  # the more biased, the less
        rings = {
            line.get_marker(): line.get_xydata().tolist()
            for line in left.get_lines()
            if line.get_markersize() == 9 and len(line.get_xdata())
        }
        lines = {line.get_color(): list(line.get_xdata()) for line in right.get_lines() if len(line.get_xdata()) == 2}
        for kind, prefix in (("uniform", ""), ("success", "success_")):
            look, at = spire_replay.LOOK[kind], {key: rule[f"{prefix}predicted{key}"] for key in ("", "_low", "_high")}
            ring = rings[look["marker"]]
            assert ring == [[rule[f"{prefix}predicted_compute"], rule[f"{prefix}predicted_reward"]]]
            below = [point for point in rule[kind] if point["share"] <= at[""]][-1]
            above = next(point for point in rule[kind] if point["share"] >= at[""])
            assert above["compute"] - 0.01 <= ring[0][0] <= below["compute"] + 0.01
            assert lines[look["color"]] == [at[""]] * 2
            height = spire_replay.MARKS[kind]
            assert at["_low"] < at["_high"] and [[[at["_low"], height], [at["_high"], height]]] in segments(right)
        assert sorted(text.get_text() for text in right.texts) == sorted(
            f"predicted {rule[name]:.2f}" for name in ("predicted", "success_predicted")
        )


def test_a_kind_without_a_prediction_has_no_mark(records, tmp_path, figures):
    record = json.loads((records / "spire_replay_tiny.json").read_text())
    for rule in record["result"]["curves"]["rules"].values():
        for key in [key for key in rule if key.startswith("success_predicted")]:
            del rule[key]
    spire_replay.draw([record], tmp_path)
    left, right = figures[0].get_axes()[:2]
    rings = [line for line in left.get_lines() if line.get_markersize() == 9 and len(line.get_xdata())]
    assert [ring.get_marker() for ring in rings] == ["o"] and len(right.texts) == 1


# ------------------------------------------------------------------------------------------------ interactions
def test_an_effect_is_filled_only_if_it_is_told_from_nothing(records, tmp_path, figures):
    draw_one("spire_interaction", [records], tmp_path)
    effects = curves(records, "spire_interaction")["effects"]
    for axes, kind in zip(figures[0].get_axes(), spire_interaction.PANELS, strict=True):
        dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
        bars = [list(line.get_xdata()) for line in axes.get_lines() if line.get_linewidth() == 1.6]
        told = [effect[f"{kind}_low"] > 0 or effect[f"{kind}_high"] < 0 for effect in effects]
        assert [dot.get_xdata()[0] for dot in dots] == [effect[kind] for effect in effects]
        assert bars == [[effect[f"{kind}_low"], effect[f"{kind}_high"]] for effect in effects]
        assert [dot.get_markerfacecolor() != "white" for dot in dots] == told
    labels = figures[0].get_axes()[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [effect["name"] for effect in effects]
