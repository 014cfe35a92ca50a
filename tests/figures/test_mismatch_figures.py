"""Figures of the mismatch of engines: what the captions say of the records is true; reproduced records are drawn."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from figures.__main__ import draw_one
from figures.cap_vs_confidence import LOOK
from figures.truncation_bias import LOOK as ARMS
from testbed.core.errors import InputError
from testbed.core.records import RunRecord
from theory.records import record
from theory.records.cap_vs_confidence import largest_untouched
from theory.report_parts.images import CAPTIONS, ELSEWHERE, SHOWN, pictures
from theory.theorems.c09_kpop_is_unbounded import largest_kept


@pytest.fixture(scope="module")
def caps():
    return record("cap_vs_confidence")


@pytest.fixture(scope="module")
def confidence():
    return record("displacement_vs_confidence")


@pytest.fixture(scope="module")
def tails():
    return record("displacement_tails")


def test_every_bound_has_a_line_and_every_arm_a_marker(caps):
    assert set(LOOK) == set(caps["bounds"])
    (curve,) = record("truncation_bias")["curves"].values()
    assert set(curve["arms"]) <= set(ARMS)


def test_confidence_caps_tighten_down_to_the_floor_and_bands_on_the_ratio_do_not(caps):
    doubt = np.array(caps["doubt"])
    bounds = {name: [np.inf if x is None else x for x in bound["above_one"]] for name, bound in caps["bounds"].items()}
    for name, heights in bounds.items():
        assert heights == sorted(heights)  # doubt rises along the list
        if name.startswith("cis_") and name != "cis_odds_no_floor":
            assert np.ptp(np.array(heights)[doubt < caps["floor"]]) < 1e-9
    assert np.allclose(bounds["cis_odds_no_floor"], doubt * np.expm1(2.3), rtol=1e-4)
    assert bounds["kpop"][-1] > 1e5
    for name, ratio in {"tis_2": 2, "tis_1p13": 1.13, "icepop": 5, "mis": 3}.items():
        assert np.allclose(bounds[name], ratio - 1, rtol=1e-9)


def test_caps_found_by_trying_are_those_known_in_closed_form(caps):
    assert np.exp(largest_untouched("kpop", np.array([0.5]))) == pytest.approx(largest_kept(0.5), rel=1e-8)
    crossing = largest_untouched("cis", np.array([caps["crossing"]]))
    assert np.exp(crossing) == pytest.approx(2.0, rel=1e-9)
    assert np.exp(largest_untouched("dppo_tv", np.array([0.2]))) == pytest.approx(0.8 / 0.6, rel=1e-9)


def test_a_constant_cap_takes_more_than_cis_from_doubtful_tokens_and_less_from_sure_ones():
    (curve,) = record("truncation_bias")["curves"].values()
    sizes = {arm: [-value for value, _, _ in rows] for arm, rows in curve["bias by range"].items()}
    larger = [a > b for a, b in zip(sizes["TIS(2)"], sizes["CIS, odds"], strict=True)]
    assert larger == [True, True, False, False, False]
    assert all(min(rows) > 0 for rows in sizes.values())
    assert all(second < 1.1 for rows in curve["second moment by range"].values() for second in rows)


def test_the_spread_of_displacements_hardly_depends_on_doubt_and_that_of_log_ratios_falls_with_it(confidence):
    for curve in confidence["curves"].values():
        eps, log_k, doubt = (np.array(curve[key]) for key in ("mad epsilon", "mad log k", "doubt"))
        assert max(eps) / min(eps) < 2
        slope = np.polyfit(np.log(doubt), np.log(log_k), 1)[0]
        assert 0.85 < slope < 1.15
        for low, high in itertools.pairwise(("q1", "q10", "q50", "q90", "q99")):
            assert all(a < b for a, b in zip(curve[low], curve[high], strict=True))
    for curve in (c for name, c in confidence["curves"].items() if name.startswith("rollouts")):
        for key, (low, high) in curve["interval"].items():
            assert all(a <= x <= b for a, x, b in zip(low, curve[key], high, strict=True)), key


def test_tails_fall_experts_are_rougher_and_intervals_hold_what_was_measured(tails):
    curves = tails["curves"]
    for curve in curves.values():
        assert all(curve[of] == sorted(curve[of], reverse=True) for of in ("delta", "epsilon"))
    for of in ("delta", "epsilon"):
        dense, experts = (curves[f"calibrated law, {model}"][of] for model in ("dense", "MoE"))
        assert all(a < b for a, b in zip(dense, experts, strict=True))
        for curve in (c for name, c in curves.items() if name.startswith("rollouts")):
            low, high = curve[f"{of} interval"]
            assert all(a <= x <= b for a, x, b in zip(low, curve[of], high, strict=True))
            assert max(b - a for a, b in zip(low, high, strict=True)) > 0.01
    for point in (p for p in tails["printed"] if p["of"] == "delta"):
        curve = curves["calibrated law, dense" if point["model"] == "Dense" else "calibrated law, MoE"]
        made = np.exp(np.interp(np.log(point["x"]), np.log(curve["points"]), np.log(curve["delta"])))
        assert made == pytest.approx(point["share"], rel=0.15)


def test_more_differing_layers_are_rougher_and_the_last_bin_holds_little_more_than_seven():
    found = record("flips")
    curve = found["curves"]["calibrated law, MoE"]
    assert curve["sd"] == sorted(curve["sd"])
    last = [(n, share) for n, share in zip(curve["flips"], curve["share"], strict=True) if n >= 7]
    assert sum(n * share for n, share in last) / sum(share for _, share in last) < 9.5
    for printed, made in zip(found["printed"], found["binned"], strict=True):
        assert made["sd"] == pytest.approx(printed["sd"], rel=0.1)
        assert made["share"] == pytest.approx(printed["share"], rel=1e-9)


# ------------------------------------------------------------------------------------------------ the reproduction's records
def as_reproduced(name):
    """A record in the form the reproduction writes, made of ours."""
    curves = record(name)["curves"]
    if name == "displacement_tails":  # a perturbation may be read off in several ways
        return {
            source: {**curve, "delta": [{"name": f"{source}, {k}", "beyond": curve["delta"]} for k in "ab"]}
            for source, curve in curves.items()
        }
    if (
        name == "truncation_bias"
    ):  # measured: intervals, ranges without tokens, rules that touch none, no second moments
        (curve,) = curves.values()
        rows = {arm: [[2 * b - 1e-6, 3 * b, b] for b, _, _ in values] for arm, values in curve["bias by range"].items()}
        rows["CIS, odds"] = [["nan"] * 3, *([[1e-18] * 3] * 4)]
        nothing = {arm: [[0.0] * 3] * 5 for arm in curve["arms"]}
        kept = {key: curve[key] for key in ("model", "ranges", "arms")}
        return {"one": {**kept, "bias by range": rows}, "other": {**kept, "bias by range": nothing}}
    return curves


@pytest.mark.parametrize(
    ("name", "study"),
    [
        ("displacement_tails", "cis_fig7"),
        ("displacement_vs_confidence", "cis_fig9"),
        ("flips", "cis_fig8"),
        ("truncation_bias", "cis_fig5"),
    ],
)
def test_records_of_the_reproduction_are_drawn_by_the_same_script(name, study, tmp_path):
    result = {"curves": as_reproduced(name)}
    RunRecord(result=result, provenance={}).save(tmp_path / f"{study}_tiny.json")
    written = draw_one(name, [tmp_path], tmp_path / "out")
    assert {path.name for path in written} == {f"{name}_tiny.{kind}" for kind in ("pdf", "png", "json")}
    assert json.loads((tmp_path / "out" / f"{name}_tiny.json").read_text()) == json.loads(json.dumps(result))
    RunRecord(result=record(name), provenance={}).save(tmp_path / f"{name}.json")
    assert len(draw_one(name, [tmp_path], tmp_path / "out")) == 6


def test_without_any_record_the_own_one_is_asked_for(tmp_path):
    with pytest.raises(InputError, match=r"no flips\.json .*theory records flips"):
        draw_one("flips", [tmp_path], tmp_path)


# ------------------------------------------------------------------------------------------------ in the report
def test_every_figure_of_the_report_has_a_caption_and_every_link_a_figure():
    shown = {name for names in SHOWN.values() for name in names}
    assert shown | {"mutant_margins"} == set(CAPTIONS)
    assert all(other in SHOWN for others in ELSEWHERE.values() for other in others)


def test_a_theorem_links_to_figures_under_others_where_they_are_there(tmp_path):
    (tmp_path / "cap_vs_confidence.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(16))
    (line,) = pictures("C7", tmp_path)
    assert 'href="#C4"' in line and "#C6" not in line
    (image,) = pictures("C4", tmp_path)
    assert "<img" in image
    assert pictures("C6", tmp_path) == [] == pictures("C7", None)
