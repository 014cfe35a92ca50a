"""Every table and figure runs at every scale it has, writes its record and tables, and says what it must."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from paper_repro import cis_operators, run
from paper_repro.__main__ import app
from paper_repro.cis_displacement import by_confidence, full_ranges, ratio_check
from paper_repro.cis_floor import largest_change
from paper_repro.cis_logit_noise import correlation, density, density_interval, measured_tails
from paper_repro.comparison import VERDICTS
from paper_repro.mismatch_samples import NoiseSample
from paper_repro.mismatch_weights import weights_of
from paper_repro.run import run_study
from paper_repro.studies import STUDIES
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.weighting import truncate
from testbed.weighting.confidence import CAP_FORMS
from tests.paper_repro.test_comparison import sample

RUNS = [(study.name, scale) for study in STUDIES.values() for scale in study.scales]
TABLES_OF_NUMBERS = ("cis_table3", "cis_table4", "cis_table5", "cis_table6", "cis_table7")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Return a folder with the smoke records of every study."""
    folder = tmp_path_factory.mktemp("out")
    for name, scale in RUNS:
        run_study(name, scale, folder, smoke=True)
    assert [path.name for path in folder.iterdir()] == ["smoke"]
    return folder / "smoke"


def result(out, name, scale):
    return json.loads((out / "records" / f"{name}_{scale}.json").read_text())["result"]


@pytest.mark.parametrize(("name", "scale"), RUNS)
def test_a_record_holds_what_tables_and_figures_need(out, name, scale):
    found = result(out, name, scale)
    assert (found["name"], found["scale"], found["smoke"]) == (name, scale, True)
    assert {cell["verdict"] for cell in found["cells"]} <= set(VERDICTS)
    assert {check["verdict"] for check in found["checks"]} <= {"holds", "does not hold", "cannot be told"}
    assert found["sources"]
    assert bool(found["curves"]) == name.startswith(("cis_fig", "spire_"))
    text = (out / "tables" / f"{name}_{scale}.md").read_text()
    assert all(check["found"].replace("|", "\\|") in text for check in found["checks"])
    assert "smoke" in text.splitlines()[0]
    with (out / "tables" / f"{name}_{scale}.csv").open(newline="") as file:
        kinds = [line["kind"] for line in csv.DictReader(file)]
    counts = {kind: kinds.count(kind) for kind in ("cell", "row", "check")}
    assert counts == {"cell": len(found["cells"]), "row": len(found["rows"]), "check": len(found["checks"])}


@pytest.mark.parametrize("name", TABLES_OF_NUMBERS)
@pytest.mark.parametrize("scale", ["tiny", "real"])
def test_the_papers_number_stands_beside_ours(out, name, scale):
    if scale not in STUDIES[name].scales:
        return
    cells = result(out, name, scale)["cells"]
    assert all(cell["paper"] for cell in cells)
    judged = [cell for cell in cells if cell["verdict"] in {"reproduced", "within noise", "not reproduced"}]
    assert all(cell["low"] <= cell["high"] for cell in judged)
    assert len(judged) >= (0 if (name, scale) == ("cis_table7", "real") else 3)


@pytest.mark.parametrize(("name", "scale"), [run for run in RUNS if run[0] in TABLES_OF_NUMBERS])
def test_ours_is_printed_in_the_unit_and_form_of_the_papers_number(out, name, scale):
    """Every percent stands beside a percent, and every large count is grouped, the paper's and ours."""
    lines = (out / "tables" / f"{name}_{scale}.md").read_text().splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[4:7] for line in lines if line.count("|") - line.count("\\|") == 8][2:]
    assert len(cells) == len(result(out, name, scale)["cells"])
    for paper, ours, interval in cells:
        number, ends = ours.strip(), re.findall(r"[^\[\], ]+", interval)
        assert not re.search(r"(?<![.\d,])\d{4,}(?!\d*\.)", paper + ours), (paper, ours)
        for one in [number, *ends] if number else []:
            assert one.endswith("%") == paper.strip().endswith("%"), (paper, ours, interval)


def test_a_smoke_run_leaves_full_results_alone_and_says_so(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    full = tmp_path / "records" / "cis_table3_tiny.json"
    full.write_text("full")
    arguments = ["run", "cis_table3", "--scale", "tiny", "--smoke", "--out", str(tmp_path)]
    assert run_command(app, "paper-repro", arguments) == 0
    assert full.read_text() == "full"
    assert not (tmp_path / "tables").exists()
    assert (tmp_path / "smoke" / "records" / full.name).exists()
    assert f"smoke run: everything is in {tmp_path / 'smoke'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["nope", "--scale", "tiny"], ["cis_table3", "--scale", "huge"], ["cis_table4", "--scale", "real"]]
)
def test_bad_usage_is_refused_before_anything_heavy_is_imported(arguments):
    code = (
        "import sys; from paper_repro.__main__ import app; from testbed.core.command import run_command\n"
        f"status = run_command(app, 'paper-repro', {['run', *arguments]!r})\n"
        "print(status, {'torch', 'numpy', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 set()\n"
    assert done.stderr.count("\n") == 1


def test_nothing_fitted_is_called_reproduced(out):
    for name in ("cis_table4", "cis_table5"):
        words = {c["verdict"] for c in result(out, name, "tiny")["cells"] if c["source"].startswith("noise model")}
        assert words == {"fitted"}
    spreads = [
        c for c in result(out, "cis_table6", "tiny")["cells"] if c["source"].startswith("noise") and "sd(" in c["row"]
    ]
    assert {c["verdict"] for c in spreads} == {"fitted"}


def test_a_dense_model_reproduces_no_mixture_of_experts(out):
    cells = result(out, "cis_table7", "real")["cells"]
    assert {cell["verdict"] for cell in cells} <= {"other model", "too few", "size"}
    assert {c["verdict"] for c in result(out, "cis_table6", "real")["cells"] if c["column"] == "MoE"} == {
        "not measured"
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "cis_table4", "--scale", "real"], "mixture of experts"),
        (["run", "cis_table99", "--scale", "tiny"], "cis_table99"),
        (["run", "cis_table3", "--scale", "full"], "GPUs"),
        (["run", "cis_table3", "--scale", "huge"], "tiny, real"),
        (["run", "cis_table3"], "--scale"),
    ],
)
def test_bad_usage_is_one_sentence(capsys, tmp_path, arguments, words):
    if "--scale" in arguments:
        arguments = [*arguments, "--out", str(tmp_path)]
    assert run_command(app, "paper-repro", arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_tables_are_written_again_from_records(out, capsys):
    path = out / "tables" / "cis_table6_real.md"
    before = path.read_text()
    path.unlink()
    (out / "records" / "cis_fig3_tiny.json").rename(out / "records" / "elsewhere.json")
    assert run_command(app, "paper-repro", ["tables", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    (out / "records" / "elsewhere.json").rename(out / "records" / "cis_fig3_tiny.json")
    assert path.read_text() == before
    assert "cis_fig3_tiny: not run" in printed
    assert len(printed.splitlines()) == len(RUNS)
    assert (out / "tables" / "index.md").read_text().count("\n") == len(RUNS)


def test_a_broken_record_is_one_sentence(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "cis_table3_tiny.json").write_text("{")
    assert run_command(app, "paper-repro", ["tables", "--out", str(tmp_path)]) == 2
    assert "cis_table3_tiny.json" in capsys.readouterr().err


def test_the_list_names_every_study(capsys):
    assert run_command(app, "paper-repro", ["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in STUDIES)


def test_an_unwritable_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "one_thread", lambda *_: pytest.fail("nothing may be computed"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        run_study("cis_table3", "tiny", tmp_path / "file")


# ------------------------------------------------------------------------------------------------ figure 2
@pytest.mark.parametrize("scale", ["tiny", "real"])
def test_densities_hold_all_values_and_lie_in_their_intervals(out, scale):
    for curve in result(out, "cis_fig2", scale)["curves"].values():
        edges = np.array(curve["edges"])
        assert np.allclose(edges, -edges[::-1], rtol=0, atol=1e-15)
        rows = [(curve["epsilon"], curve["epsilon interval"], curve["count"])]
        rows += [(reading["density"], reading["interval"], reading["count"]) for reading in curve["delta"]]
        shares = [curve["outside"], *(reading["outside"] for reading in curve["delta"])]
        for (heights, (low, high), count), share in zip(rows, shares, strict=True):
            values = np.array(heights) * np.diff(edges) * count
            assert np.allclose(values, values.round(), rtol=0, atol=1e-6)
            assert values.sum() == pytest.approx(count * (1 - share), abs=1e-6)
            full = values > 0.02 * count
            assert full.sum() >= 3
            assert (np.array(low) <= np.array(high)).all()
            assert (np.array(low)[full] < np.array(high)[full]).all()
            inside = (np.array(low) <= heights) & (heights <= np.array(high))
            assert inside[full].mean() > 0.8


def test_the_interval_of_a_density_draws_whole_responses(rng):
    setting, alone = Setting(scale="tiny"), np.arange(4000)
    values = rng.normal(0, 0.3, 4000)
    (low, high), (low_many, high_many) = (
        density_interval(setting, "n", response, np.repeat(values, times))
        for response, times in ((alone, 1), (np.repeat(alone, 4), 4))
    )
    center = len(low) // 2
    share = density(values)[center] / 32
    expected = 2 * 1.959964 * 32 * np.sqrt(share * (1 - share) / 4000)
    assert high[center] - low[center] == pytest.approx(expected, rel=0.25)
    assert np.allclose([low, high], [low_many, high_many], rtol=1e-12)  # copies in a response tell nothing more


# ------------------------------------------------------------------------------------------------ table 8
def test_every_printed_operator_agrees_with_our_rule(out):
    rows = result(out, "cis_table8", "real")["rows"]
    assert {row["method"]: row["verdict"] for row in rows if row["verdict"] != "missing"} == dict.fromkeys(
        cis_operators.PRINTED, "agrees"
    )
    assert {row["method"] for row in rows if row["verdict"] == "missing"} == {
        "Seq-MIS", "CIS, odds", "CIS, linear", "CIS, loglinear",
    }  # fmt: skip


@pytest.mark.parametrize("planted", [lambda x, cap: x.exp(), lambda x, cap: (-x).exp().clamp(max=cap)])
def test_a_bug_in_a_rule_is_seen_on_the_grid(monkeypatch, planted):
    monkeypatch.setattr(truncate, "truncate", planted)
    found = cis_operators.table8(Setting(scale="real", smoke=True))
    words = {row["method"]: row["verdict"] for row in found.rows}
    assert (words["TIS"], words["IcePop"]) == ("differs", "agrees")


def test_the_grid_reaches_every_threshold():
    grid = cis_operators.grid()
    for arm, formula in cis_operators.PRINTED.items():
        if arm not in {"No correction", "Exact ratio"}:
            weight = formula(grid)
            acted = (weight == 0) | (weight == 2.0)  # dropped, or at the cap of either truncation
            assert 0.05 < acted.mean() < 0.95, arm
    assert 0.5 < cis_operators.away_from_thresholds(grid).mean() <= 1


# ------------------------------------------------------------------------------------------------ table 12
@pytest.mark.parametrize("form", CAP_FORMS)
def test_no_token_moves_by_more_than_the_bound(form, rng):
    p, q = 1 - 10 ** rng.uniform(-9, -0.01, (2, 4000))
    one = sample(p, q)
    before, after = (weights_of(one, "cis", lam=2.3, floor=floor, cap_form=form) for floor in (0.0, 1e-3))
    change = after / before - 1
    assert 0 < change.max() <= largest_change(1e-3, form) * (1 + 1e-9)
    assert largest_change(1e-3, form) < 0.01


# ------------------------------------------------------------------------------------------------ statistics
def displaced(p, eps):
    return sample(p, 1 / (1 + np.exp(eps - np.log(p / (1 - p)))))


def test_ratio_check_holds_for_a_centered_displacement_and_fails_for_a_common_one(rng):
    p = rng.uniform(0.91, 0.98, 600)
    centered, common = displaced(p, rng.normal(0, 0.3, 600)), displaced(p, rng.normal(0.3, 1e-3, 600))
    assert ratio_check(centered).holds is True
    assert ratio_check(common).holds is False
    assert ratio_check(centered.of(np.arange(100))).holds is None
    assert full_ranges(centered) == ["0.9-0.99"]
    assert by_confidence(centered, full_ranges(centered))["0.9-0.99: Tokens"] == 600


def test_correlation_of_one_position(rng):
    shared, own = rng.normal(size=(3000, 1)), rng.normal(size=(3000, 8))
    delta = np.sqrt(0.3) * shared + np.sqrt(0.7) * own
    position = np.repeat(np.arange(3000), 8)
    noise = NoiseSample(name="n", model="MoE", entries="", response=position, position=position, delta=delta.ravel())
    assert correlation(noise) == pytest.approx(0.3, abs=0.03)


def test_a_tail_nobody_saw_is_not_said_to_be_impossible():
    delta, position = np.tile([0.1, -0.1], 200), np.repeat(np.arange(200), 2)
    noise = NoiseSample(name="n", model="Dense", entries="", response=position, position=position, delta=delta)
    value, low, high = measured_tails(Setting(scale="real", smoke=True), noise)["Pr(|delta|>1)"]
    assert (value, low) == (0.0, 0.0)
    assert high == pytest.approx(100 * (1 - 0.025 ** (1 / 200)))
