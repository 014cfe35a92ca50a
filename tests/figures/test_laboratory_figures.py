"""Figures of training runs: what is drawn is the record, nothing is left out, and equal records give equal files."""

from __future__ import annotations

import json

import pytest

from figures import spire_interaction, spire_partial, spire_replay, spire_staleness
from figures.__main__ import NoRecord, draw_one
from paper_repro import lab_interaction, lab_partial, lab_replay, lab_staleness
from paper_repro.study import Setting
from testbed.core.records import RunRecord
from testbed.training.replay_moments import ReplayMoments
from tests.paper_repro.laboratory_worlds import planted

LABORATORY = ("spire_staleness", "spire_partial", "spire_replay", "spire_interaction")
SCRIPTS = (spire_staleness, spire_partial, spire_replay, spire_interaction)
MOMENTS = [
    ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
]
FEW = {"rule": ("none", "spire", "ppo_clip", "decoupled_ppo", "sequence_product")}


def found(name):
    """The finding of a study whose rewards were planted."""

    def reward(levels, seed):
        late = int(levels.get("staleness", "0")) / 40 if name == "staleness" else 0.0
        return 0.9 - late * (3 if levels.get("rule") == "none" else 1)

    def shape(levels, seed):
        paid = {"curve_engine_seconds": [0.1] * 15, "curve_trainer_seconds": [0.1] * 15}
        return {"evaluations": [0.5, *[reward(levels, seed) + seed / 100] * 40], **paid}

    module = {
        "staleness": lab_staleness, "partial": lab_partial, "replay": lab_replay, "interaction": lab_interaction,
    }[name]  # fmt: skip
    keep = FEW | ({"staleness": ("0", "4", "16")} if name == "staleness" else {})
    results = planted(name, reward, shape=shape, seeds=5, keep=keep, collapsed=lambda *run: reward(*run) < 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "results_of", lambda *_: results)
        if name == "replay":
            patch.setattr(module, "pilot", lambda *_, **__: [MOMENTS * 4])
        return module.table(Setting(scale="tiny"))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("laboratory")
    for name in LABORATORY:
        finding = found(name.removeprefix("spire_"))
        RunRecord(result={"name": name, **finding.plain()}, provenance={}).save(folder / f"{name}_tiny.json")
    return folder


@pytest.fixture
def panels(monkeypatch):
    """Return the panels of every figure that is saved while a test runs."""
    kept = []
    for script in SCRIPTS:
        monkeypatch.setattr(script, "save", lambda figure, *_: kept.append(figure.get_axes()) or [])
    return kept


def curves(records, name):
    return json.loads((records / f"{name}_tiny.json").read_text())["result"]["curves"]


@pytest.mark.parametrize("name", LABORATORY)
def test_the_numbers_drawn_are_the_record_and_twice_the_same(name, records, tmp_path):
    for folder in ("a", "b"):
        draw_one(name, [records], tmp_path / folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert set(files) == {f"{name}_tiny.{kind}" for kind in ("pdf", "png", "json")}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert json.loads(files[f"{name}_tiny.json"])["curves"] == curves(records, name)
    assert len(files[f"{name}_tiny.png"]) < 100_000


@pytest.mark.parametrize("name", LABORATORY)
def test_without_a_record_the_command_is_named(name, tmp_path):
    with pytest.raises(NoRecord, match=f"python -m paper_repro run {name} --scale tiny`"):
        draw_one(name, [tmp_path], tmp_path)


def test_every_rule_has_a_panel_with_its_rewards_and_its_collapses(records, tmp_path, panels):
    draw_one("spire_staleness", [records], tmp_path)
    drawn = curves(records, "spire_staleness")["rules"]
    by_title = {axes.get_title(loc="left"): axes for axes in panels[0]}
    assert set(drawn) <= set(by_title) and sum(drawn["none"]["collapsed"]) > 0
    for rule, own in drawn.items():
        heights = [list(line.get_ydata()) for line in by_title[rule].get_lines()]
        assert own["reward"] in heights and (rule == "none" or drawn["none"]["reward"] in heights)
        counts = [float(text.get_text()) for text in by_title[rule].texts]
        assert counts == [count for count in own["collapsed"] if count]


def test_every_way_of_sampling_has_a_panel_and_controls_are_called_so(records, tmp_path, panels):
    draw_one("spire_partial", [records], tmp_path)
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in panels[0]]
    assert titles[:5] == ["whole", "same_age", "two", "many", "resumed"]
    assert {title.split(": ")[1] for title in titles if title.startswith("control")} == set(lab_partial.CONTROLS)
    assert "innocent: blind" in titles


def test_the_predicted_share_is_marked_in_both_comparisons(records, tmp_path, panels):
    draw_one("spire_replay", [records], tmp_path)
    for place, rule in enumerate(curves(records, "spire_replay")["rules"].values()):
        left, right = panels[0][2 * place : 2 * place + 2]
        ends = [
            [point[name] for point in rule["uniform"] if point["share"] in (0.25, 0.5)]
            for name in ("compute", "reward")
        ]
        rings = [line.get_xydata().tolist() for line in left.get_lines() if line.get_markersize() == 9]
        assert rings == [[[rule["predicted_compute"], rule["predicted_reward"]]]]
        assert all(min(pair) - 0.01 <= at <= max(pair) + 0.01 for pair, at in zip(ends, rings[0][0], strict=True))
        assert [rule["predicted"]] * 2 in [list(line.get_xdata()) for line in right.get_lines()]


def test_an_effect_is_filled_only_if_it_is_told_from_nothing(records, tmp_path, panels):
    draw_one("spire_interaction", [records], tmp_path)
    effects = curves(records, "spire_interaction")["effects"]
    dots = [line for line in panels[0][0].get_lines() if line.get_marker() == "o"]
    told = [effect["raw_low"] > 0 or effect["raw_high"] < 0 for effect in effects]
    assert [dot.get_xdata()[0] for dot in dots] == [effect["raw"] for effect in effects]
    assert [dot.get_markerfacecolor() != "white" for dot in dots] == told
