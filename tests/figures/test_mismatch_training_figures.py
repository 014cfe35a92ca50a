"""Figures of training under a mismatch: what is drawn is the record, and equal records give equal files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from figures import threshold_and_floor, tokens_acted_on, training_dynamics
from figures.__main__ import NoRecord, draw_one
from paper_repro import cis_dynamics, cis_settings, cis_sweeps, cis_tokens
from paper_repro.study import Setting
from testbed.core.records import RunRecord
from tests.paper_repro.laboratory_worlds import planted, wobble

TINY = Setting(scale="tiny")
SCRIPTS = {
    "threshold_and_floor": threshold_and_floor, "training_dynamics": training_dynamics, "tokens_acted_on": tokens_acted_on,
}  # fmt: skip
SETTINGS = ("dense_x24", "experts_x24")


def shape(levels, seed):
    """Columns of the dynamics: every arm has levels of its own, every seed differs."""
    height = 1 + sum(map(ord, levels["arm"])) % 7
    columns = {name: [height + k / 10 + wobble(levels, seed, 0.3) for k in range(15)] for name in cis_dynamics.DRAWN}
    return {f"curve_{name}": values for name, values in columns.items()}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mismatch")
    reward = lambda levels, seed: 0.3 if "0" in levels.values() else 0.8  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cis_sweeps, "results_of", lambda name, *_: planted(name, reward, seeds=5))
        few = {"noise": ("x24",)}
        patch.setattr(
            cis_settings, "results_of", lambda name, *_: planted(name, reward, shape=shape, seeds=5, keep=few)
        )
        smoke = Setting(scale="tiny", smoke=True, out=folder)
        findings = {
            "cis_fig6": cis_sweeps.figure6(TINY), "cis_fig10": cis_dynamics.figure10(TINY),
            "cis_fig12": cis_tokens.figure12(smoke),
        }  # fmt: skip
    for name, finding in findings.items():
        RunRecord(result={"name": name, **finding.plain()}, provenance={}).save(folder / f"{name}_tiny.json")
    return folder


@pytest.fixture
def figures(monkeypatch):
    """Return file name -> figure, for every figure that is saved while a test runs."""
    kept = {}
    for script in SCRIPTS.values():
        monkeypatch.setattr(script, "save", lambda figure, name, *_: kept.update({name: figure}) or [])
    return kept


def curves(records, name):
    return json.loads((records / f"{name}_tiny.json").read_text())["result"]["curves"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_equal_records_give_equal_files_beside_the_numbers_drawn(name, records, tmp_path):
    for folder in ("a", "b"):
        draw_one(name, [records], tmp_path / folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    stems = [f"{name}_tiny_{setting}" for setting in SETTINGS] if name == "training_dynamics" else [f"{name}_tiny"]
    assert set(files) == {f"{stem}.{kind}" for stem in stems for kind in ("pdf", "png", "json")}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    found = curves(records, SCRIPTS[name].REPRODUCED)
    for stem in stems:
        numbers = json.loads(files[f"{stem}.json"])
        if name == "training_dynamics":
            assert numbers["arms"] == found[numbers["place"]]["arms"]
        else:
            assert numbers["curves"] == found
        assert len(files[f"{stem}.png"]) < 150_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_record_the_command_is_named(name, tmp_path):
    with pytest.raises(NoRecord, match=f"python -m paper_repro run {SCRIPTS[name].REPRODUCED} --scale tiny`"):
        draw_one(name, [tmp_path], tmp_path)


def test_the_paper_stands_above_and_ours_below(records, tmp_path, figures):
    draw_one("threshold_and_floor", [records], tmp_path)
    (figure,) = figures.values()
    panels = figure.get_axes()
    for column, factor in enumerate(("lam", "kappa")):
        curve, (above, below) = curves(records, "cis_fig6")[factor], (panels[column], panels[2 + column])
        assert list(above.get_lines()[0].get_ydata()) == curve["paper"]
        drawn = {line.get_label(): list(line.get_ydata()) for line in below.get_lines()}
        assert drawn == {ours["label"]: ours["reward"] for ours in curve["ours"].values()}
        bars = [
            [[y for _, y in bar] for bar in one.get_segments()]
            for one in below.collections
            if hasattr(one, "get_segments")
        ]
        assert bars == [
            [list(ends) for ends in zip(ours["low"], ours["high"], strict=True)] for ours in curve["ours"].values()
        ]
        assert [label.get_text() for label in below.get_xticklabels()] == curve["levels"]


def test_every_arm_has_a_line_of_its_own_in_every_panel(records, tmp_path, figures):
    draw_one("training_dynamics", [records], tmp_path)
    assert set(figures) == {f"training_dynamics_tiny_{setting}" for setting in SETTINGS}
    found = {setting["name"]: setting for setting in curves(records, "cis_fig10").values()}
    for setting in SETTINGS:
        panels = figures[f"training_dynamics_tiny_{setting}"].get_axes()
        for axes, key in zip(panels, training_dynamics.PANELS, strict=True):
            lines = [line for line in axes.get_lines() if line.get_label() != "_edge"]
            drawn = {line.get_label(): list(line.get_ydata()) for line in lines}
            arms = found[setting]["arms"]
            assert drawn == {arms[arm]["name"]: arms[arm][key]["mean"] for arm in training_dynamics.ARMS}
            looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}
            assert len(looks) == len({line.get_marker() for line in lines}) == len(training_dynamics.ARMS)
            edges = [list(line.get_ydata()) for line in axes.get_lines() if line.get_label() == "_edge"]
            assert edges == [arms[arm][key][end] for arm in training_dynamics.BANDS for end in ("low", "high")]


def test_tokens_acted_on_have_the_other_color_and_lie_beyond_the_bound(records, tmp_path, figures):
    draw_one("tokens_acted_on", [records], tmp_path)
    (figure,) = figures.values()
    panels = iter(figure.get_axes())
    count = 0
    for arm in curves(records, "cis_fig12").values():
        for panel in arm["panels"].values():
            dots = {line.get_marker(): line for line in next(panels).get_lines() if len(line.get_xdata())}
            doubt, log_k, acted = (np.array(panel[name]) for name in ("doubt", "log k", "acted"))
            for value, look in ((0, tokens_acted_on.KEPT), (1, tokens_acted_on.ACTED)):
                y = np.clip(log_k[acted == value], -tokens_acted_on.MOST, tokens_acted_on.MOST)
                assert (look["marker"] in dots) == (len(y) > 0)
                if len(y):
                    mine = dots[look["marker"]]
                    assert mine.get_color() == look["color"] and mine.get_ydata().tolist() == y.tolist()
            bounds = tokens_acted_on.bounds(arm["rule"], arm["params"])
            if bounds:
                limits = [np.interp(np.log(np.clip(doubt, tokens_acted_on.LEAST, 1 - 1e-6)), np.log(tokens_acted_on.DOUBT), b)
                          for b in bounds]  # fmt: skip
                beyond = log_k > limits[-1] + 1e-3
                if len(limits) == 2:
                    beyond |= log_k < limits[0] - 1e-3
                assert acted[beyond].all()
                count += int(beyond.sum())
    assert count > 5
