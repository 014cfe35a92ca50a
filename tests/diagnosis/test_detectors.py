"""Planted faults are named, healthy dumps are not accused, and the printed rates are those that were measured."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
import torch

from testbed.core.seeds import SeedTree
from testbed.diagnosis import power
from testbed.diagnosis.detectors import recomputed, shift_by_one, temperature, truncated_mass, version_tags
from testbed.diagnosis.detectors.log_odds import log_odds
from testbed.diagnosis.detectors.registry import BUDGET, DETECTORS, findings
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.planted_faults import planted, strengths
from testbed.diagnosis.simulated_dumps import Sampler, simulated_dump
from testbed.sample_data import partial_rollouts_path

CASES = [(fault, strength) for fault in DETECTORS for strength in strengths(fault)]
AGAIN = 5  # dumps of each strength that are made again


@pytest.fixture(scope="module")
def record():
    return json.loads(power.RECORD.read_text())


@pytest.fixture(scope="module")
def real():
    return load_dump(partial_rollouts_path())


def fired(batch):
    return {found["check"] for found in findings(batch) if found["fired"]}


def test_two_hundred_healthy_dumps_set_off_no_fault(record, real):
    """The declared budget is met by the record's 2000 dumps; here its first 150, and 50 draws of the real rollouts."""
    assert record["healthy"]["simulated"]["at_most"] <= BUDGET == record["budget"]
    for name, dumps, source in (("simulated", 150, None), ("real", 50, real)):
        again = power.false_alarms("evaluation", dumps, source)
        expected = [number for number in record["healthy"][name]["numbers"] if number < dumps]
        assert again["numbers"] == expected == []


@pytest.mark.parametrize(("fault", "strength"), CASES)
def test_a_part_of_the_study_comes_out_as_recorded(record, fault, strength):
    row = record["power"][fault][strength]["simulated"]
    again = power.power("evaluation", fault, strength, AGAIN)
    assert again["named"] >= AGAIN - (row["dumps"] - row["named"])  # no more are missed than in the whole
    assert row["noticed"] >= row["named"]
    if strength not in ("top-p 0.99", "shuffled"):
        assert row["named"] >= 0.95 * row["dumps"]


@pytest.mark.parametrize("fault", DETECTORS)
def test_docstrings_print_the_record(record, fault):
    text = importlib.import_module(f"testbed.diagnosis.detectors.{fault}").__doc__
    assert "\n".join(power.docstring_lines(record, fault)) in text


def test_the_record_is_small_and_of_other_streams_than_the_thresholds(record):
    assert power.RECORD.stat().st_size < 50_000
    assert record["stage"] == "evaluation"
    first, other = (power.healthy_dump(stage, 0) for stage in ("evaluation", "calibration"))
    assert not torch.equal(first.logp_target[0, :8], other.logp_target[0, :8])
    assert torch.equal(first.logp_target, power.healthy_dump("evaluation", 0).logp_target)


@pytest.mark.parametrize("fault", ["shift_by_one", "recomputed", "low_precision"])
def test_faults_planted_in_real_rollouts_are_named(real, fault):
    for strength in strengths(fault):
        assert fault in fired(planted(fault, strength, SeedTree("real")[fault], real))


def test_the_named_temperature_is_about_the_one_that_was_applied():
    for t in (0.6, 0.8, 1.2):
        dumps = [simulated_dump(SeedTree("temperature")[str(t)][k], Sampler(temperature=t)) for k in range(8)]
        ratios = [(2 + m["slope"]) / (2 - m["slope"]) for m in map(temperature.measure, dumps)]
        assert np.median(ratios) == pytest.approx(t, rel=0.07)


def test_updates_that_sharpen_are_no_temperature_where_the_proximal_policy_tells(real):
    """The same line in the log-odds, but from the proximal policy to the target."""
    sharper = real.replaced(logp_target=torch.nn.functional.logsigmoid(1.5 * log_odds(real.logp_proximal)))
    assert "temperature" not in fired(sharper)
    assert "temperature" in fired(sharper.replaced(logp_proximal=None))


def test_the_kept_mass_is_what_the_ratio_shows():
    """Museum BR-28: p = (.5, .3, .15, .05) cut to mass .8 gives ratio .8 for both tokens; healthy ones lie on both sides."""
    law = np.exp(Sampler(top_p=0.8).log_law(np.log(np.array([0.5, 0.3, 0.15, 0.05]))))
    assert (np.array([0.5, 0.3]) / law[:2]).tolist() == pytest.approx([0.8, 0.8])
    assert np.exp(Sampler(top_k=1).log_law(np.log(np.array([0.5, 0.3, 0.2])))).tolist() == [1, 0, 0]


def test_holes_filled_with_zero_are_not_called_top_p(real):
    hole = real.mask & (torch.arange(real.horizon) == 5)
    filled = real.replaced(logp_behavior=torch.where(hole, 0.0, real.logp_behavior))
    measured = truncated_mass.measure(filled)
    assert measured["certain"] > 10 and measured["most"] < 0.9
    assert "truncated_mass" not in fired(filled)


def test_equal_log_probs_are_a_fault_only_where_tags_say_that_they_must_differ():
    batch = simulated_dump(SeedTree("equal"), drift=0.1, tagged=True)
    same = batch.replaced(logp_behavior=batch.logp_target)
    assert "recomputed" in fired(same)
    one_version = same.replaced(version=torch.where(same.mask, 3, -1))
    assert recomputed.measure(one_version) == {}  # nothing need lie between two policies of one version
    fresh = same.version == same.version[same.mask].max()
    honest = batch.replaced(logp_behavior=torch.where(fresh, batch.logp_target, batch.logp_behavior))
    assert "recomputed" not in fired(honest)


def test_tags_that_are_all_off_by_one_cannot_be_told():
    batch = planted("version_tags", "reversed", SeedTree("tags"))
    assert "version_tags" in fired(batch)
    right = simulated_dump(SeedTree("tags"), drift=0.15, tagged=True)
    assert "version_tags" not in fired(right)
    later = right.replaced(version=torch.where(right.mask, right.version + 1, -1))
    assert version_tags.measure(right) == version_tags.measure(later)


def test_a_shift_of_the_proximal_policy_alone_is_seen_too(real):
    shifted = real.replaced(logp_proximal=torch.where(real.mask, real.logp_proximal.roll(1, 1), real.logp_proximal))
    assert "the proximal policy's" in shift_by_one.verdict(shift_by_one.measure(shifted))


def test_a_blind_detector_fails_the_study(monkeypatch):
    """The part made again would notice a threshold that names nothing."""
    monkeypatch.setattr(temperature, "SLOPE", {True: 9.0, False: 9.0})
    assert power.power("evaluation", "temperature", "T = 0.6", AGAIN)["named"] == 0
    monkeypatch.setattr(truncated_mass, "BELOW", 0.0)
    monkeypatch.setattr(truncated_mass, "SCORE", 9.0)
    assert power.false_alarms("evaluation", 5)["accused"] == 5


def test_either_side_may_have_the_temperature():
    says = temperature.verdict({"slope": 2 * 0.45 / 2.45, "explained": 0.9, "proximal": 1.0})
    assert "1.45 on the sampler's side or of 0.69 on the trainer's" in says
