"""Figures of the reproduction's records alone: drawn for whichever scale was run, and numbers nobody can trust are not drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from figures import displacement_density, displacement_moments
from figures.__main__ import NoRecord, app, draw_one
from paper_repro.run import run_study
from testbed.core.command import run_command
from testbed.core.records import RunRecord

REPRODUCED = {"displacement_density": "cis_fig2", "displacement_moments": "cis_fig3"}
SCALES = ("tiny", "real")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return a folder with the smoke records of both studies."""
    folder = tmp_path_factory.mktemp("reproduced")
    for study in REPRODUCED.values():
        for scale in SCALES:
            run_study(study, scale, folder, smoke=True)
    return folder / "smoke" / "records"


def lines(axes):
    """Return label -> (x, y) of the lines of a panel that have a label."""
    return {line.get_label(): line.get_data() for line in axes.get_lines() if not line.get_label().startswith("_")}


@pytest.fixture
def panels(monkeypatch):
    """Return the panels of every figure that is saved while a test runs."""
    found = []
    for script in (displacement_density, displacement_moments):
        monkeypatch.setattr(script, "save", lambda figure, *_: found.append(figure.get_axes()) or [])
    return found


@pytest.mark.parametrize("name", REPRODUCED)
def test_both_scales_are_drawn_from_their_records_and_twice_the_same(name, records, tmp_path):
    for folder in ("a", "b"):
        arguments = [name, "--records", str(records), "--out", str(tmp_path / folder)]
        assert run_command(app, "figures", arguments) == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert set(files) == {f"{name}_{scale}.{kind}" for scale in SCALES for kind in ("pdf", "png", "json")}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    for scale in SCALES:
        record = json.loads((records / f"{REPRODUCED[name]}_{scale}.json").read_text())
        assert json.loads(files[f"{name}_{scale}.json"]) == record["result"]
        assert len(files[f"{name}_{scale}.png"]) < 100_000


@pytest.mark.parametrize("name", REPRODUCED)
@pytest.mark.parametrize("scale", SCALES)
def test_one_scale_is_enough(name, scale, records, tmp_path):
    file = f"{REPRODUCED[name]}_{scale}.json"
    (tmp_path / file).write_bytes((records / file).read_bytes())
    written = draw_one(name, [tmp_path], tmp_path / "out")
    assert {path.name for path in written} == {f"{name}_{scale}.{kind}" for kind in ("pdf", "png", "json")}
    with pytest.raises(NoRecord, match=f"python -m paper_repro run {REPRODUCED[name]} --scale tiny.real"):
        draw_one(name, [tmp_path / "out"], tmp_path)


def test_records_of_paper_repro_are_found_without_an_option(records, tmp_path, monkeypatch):
    (tmp_path / "out" / "records").mkdir(parents=True)
    (tmp_path / "out" / "records" / "cis_fig2_tiny.json").write_bytes((records / "cis_fig2_tiny.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run_command(app, "figures", ["displacement_density"]) == 0
    assert (tmp_path / "out" / "figures" / "displacement_density_tiny.png").exists()


def test_every_density_has_a_line_of_its_own_and_cells_with_few_values_none(records, tmp_path, panels):
    draw_one("displacement_density", [records], tmp_path)
    tiny, real = panels
    assert (len(tiny), len(real)) == (4, 2)
    curves = json.loads((records / "cis_fig2_tiny.json").read_text())["result"]["curves"]
    assert {label for axes in tiny for label in lines(axes)} == set(curves)
    assert [len(lines(axes)) for axes in real] == [4, 2]
    for drawn in (tiny, real):
        looks = {
            line.get_label(): (line.get_color(), str(line.get_linestyle()), line._unscaled_dash_pattern)
            for axes in drawn
            for line in axes.get_lines()
        }
        assert len({str(look) for look in looks.values()}) == len(looks)
    name, curve = "noise model, MoE", curves["noise model, MoE"]
    _, heights = lines(tiny[3])[name]
    width = curve["edges"][1] - curve["edges"][0]
    for drawn, height in zip(heights, curve["epsilon"], strict=True):
        enough = round(height * width * curve["count"]) >= displacement_density.FEWEST
        assert drawn == height if enough else np.isnan(drawn)


def test_a_moment_that_one_token_makes_up_is_not_drawn(records, tmp_path, panels):
    draw_one("displacement_moments", [records], tmp_path)
    curves = json.loads((records / "cis_fig3_tiny.json").read_text())["result"]["curves"]
    for axes, side in zip(panels[0], ("left", "right"), strict=True):
        drawn = lines(axes)
        for source, curve in curves.items():
            orders, values = drawn[source]
            assert list(values) == curve[side][: len(values)]
            assert list(orders) == curve["orders"][: len(values)]
            shares = curve[f"{side} largest share"]
            assert max(shares[: len(values)]) <= displacement_moments.LARGEST
            assert len(values) == len(shares) or shares[len(values)] > displacement_moments.LARGEST
    lengths = [len(lines(panels[0][0])[source][1]) for source in curves]
    assert min(lengths) < max(lengths) == len(curves["noise model, dense"]["orders"])


def test_a_record_of_before_is_one_sentence(records, tmp_path, capsys):
    result = json.loads((records / "cis_fig2_real.json").read_text())["result"]
    for curve in result["curves"].values():
        del curve["epsilon interval"]
    RunRecord(result=result, provenance={}).save(tmp_path / "cis_fig2_real.json")
    assert run_command(app, "figures", ["displacement_density", "--records", str(tmp_path)]) == 2
    assert "must have the fields it draws" in capsys.readouterr().err
