"""Planted faults change the report, each in its own check; the healthy batch sets off none."""

from __future__ import annotations

import math

import pytest
import torch

from testbed.core.batch import SegmentedBatch
from testbed.diagnosis.detectors.registry import DETECTORS
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.printed import report_sections
from testbed.diagnosis.report import diagnose
from testbed.sample_data import partial_rollouts_path


@pytest.fixture(scope="module")
def healthy():
    return load_dump(partial_rollouts_path())


def fired(batch):
    return {f["check"]: f["says"] for f in diagnose(batch)["faults"] if f["fired"]}


def shifted_segments(batch):
    """Label each token with the segment of the token before it."""
    before = torch.cat([batch.segment[:, :1], batch.segment[:, :-1]], 1)
    return batch.replaced(segment=torch.where(batch.mask, before, batch.segment))


def shifted_target(batch):
    """Read the target's log-prob one position late."""
    later = torch.cat([batch.logp_target[:, 1:], batch.logp_target[:, :1]], 1)
    return batch.replaced(logp_target=later)


def filled(batch):
    hole = batch.mask & (torch.arange(batch.horizon) == 5)
    return batch.replaced(logp_behavior=torch.where(hole, 0.0, batch.logp_behavior))


PLANTED = {
    "recomputed": (lambda b: b.replaced(logp_behavior=b.logp_target), {"zero_variance"}),
    "recomputed in one segment": (
        lambda b: b.replaced(logp_behavior=torch.where(b.segment == 1, b.logp_target, b.logp_behavior)),
        {"zero_variance"},
    ),
    "proximal copied": (lambda b: b.replaced(logp_proximal=b.logp_behavior), {"zero_variance"}),
    "columns exchanged": (
        lambda b: b.replaced(logp_target=b.logp_behavior, logp_behavior=b.logp_target, logp_proximal=None),
        {"unit_mean", "negative_divergence"},
    ),
    "labels shifted": (shifted_segments, {"label_mixture"}),
    "positions shifted": (shifted_target, {"shift_by_one"}),
    "holes filled": (filled, {"filled_with_zero"}),
    "behavior of the wrong temperature": (
        lambda b: b.replaced(logp_behavior=b.logp_behavior / 0.8),
        {"unit_mean", "negative_divergence"},
    ),
    "16 bits": (lambda b: b.replaced(logp_target=b.logp_target.bfloat16()), {"low_precision"}),
    "overshoot": (
        lambda b: b.replaced(
            logp_target=torch.where(b.logp_target == b.logp_target[b.mask].max(), 1e-7, b.logp_target)
        ),
        {"clipped"},
    ),
    "support": (
        lambda b: b.replaced(logp_target=torch.where(b.logp_target < -8, -math.inf, b.logp_target)),
        {"support_mismatch"},
    ),
}


def test_the_healthy_batch_sets_off_no_fault(healthy):
    assert set(fired(healthy)) == {"large_products"}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(healthy, name):
    plant, expected = PLANTED[name]
    assert expected <= set(fired(plant(healthy)))


def test_recomputed_log_probs_are_located(healthy):
    says = fired(PLANTED["recomputed in one segment"][0](healthy))["zero_variance"]
    assert "segment 1 (1821 tokens, all 0 nats)" in says
    assert "segment 0" not in says


def test_shifted_labels_move_tokens_between_segments(healthy):
    before, after = diagnose(healthy), diagnose(shifted_segments(healthy))
    moved = before["batch"]["segments"][1]["tokens"] - after["batch"]["segments"][1]["tokens"]
    assert moved == int((healthy.segment == 1).any(1).sum()) == 75
    assert before["products"][0]["raw"]["second_moment"] != after["products"][0]["raw"]["second_moment"]
    assert before["products"][1]["raw"]["mean"] == pytest.approx(after["products"][1]["raw"]["mean"])


def test_exchanged_columns_show_a_mean_above_1_and_an_impossible_divergence(healthy):
    record = diagnose(PLANTED["columns exchanged"][0](healthy))
    mean = next(r for r in record["unit_means"] if r["segment"] == 0)
    assert mean["mean"] > 1.1
    assert mean["excludes_1"] == "both"
    assert next(g for g in record["gaps"] if g["segment"] == 0)["kl_k1"] < -0.05


def one_ratio(log_ratio, length, count, segment=0):
    shape = (count, length)
    return SegmentedBatch(
        tokens=torch.zeros(shape, dtype=torch.int64), mask=torch.ones(shape, dtype=torch.bool),
        segment=torch.full(shape, segment), logp_target=torch.full(shape, min(log_ratio, 0.0) - 1.0, dtype=torch.float64),
        logp_behavior=torch.full(shape, min(-log_ratio, 0.0) - 1.0, dtype=torch.float64),
        reward=torch.zeros(count, dtype=torch.float64), group=torch.arange(count),
    )  # fmt: skip


def test_small_gaps_over_a_long_response_are_said_to_be_driven_by_length():
    record = diagnose(one_ratio(0.012, 100, 30))
    says = next(f["says"] for f in record["faults"] if f["check"] == "large_products")
    assert "driven by length, per-token gap 1.2%" in says
    assert record["products"][0]["raw"]["mean"] == pytest.approx(3.3201, abs=5e-5)


def test_one_wild_token_is_not_driven_by_length():
    batch = one_ratio(0.0, 100, 30)
    wild = batch.logp_behavior.clone()
    wild[:, 50] = -3.0
    assert "driven by single tokens" in fired(batch.replaced(logp_behavior=wild))["large_products"]


def test_a_version_change_inside_a_segment_is_a_mixture(healthy):
    version = torch.where(torch.arange(healthy.horizon) < 10, 4, 5).expand(healthy.mask.shape)
    says = fired(healthy.replaced(engine=None, version=version))["label_mixture"]
    assert "the version changes inside a segment of" in says


def test_extreme_batches_are_described_and_not_refused():
    for batch in (one_ratio(900.0, 4, 5), one_ratio(-900.0, 4, 5), one_ratio(0.3, 1, 1), one_ratio(0.3, 2, 25, 10**6)):
        assert diagnose(batch)["batch"]["tokens"] == batch.n_tokens


def test_an_empty_batch_is_refused():
    batch = one_ratio(0.1, 2, 2)
    with pytest.raises(ValueError, match="at least one token"):
        diagnose(batch.replaced(mask=torch.zeros_like(batch.mask)))


def test_rows_without_tokens_change_nothing(healthy):
    some = healthy.select(list(range(40)))
    emptied = torch.arange(80)[:, None] % 2 == 0  # every other row of a doubled batch
    doubled = some.select([i // 2 for i in range(80)])
    padded = doubled.replaced(mask=doubled.mask & emptied)
    first, second = diagnose(some), diagnose(padded)
    assert first["products"] == second["products"]
    assert first["rules"] == second["rules"]


def test_segment_labels_may_be_any_numbers(healthy):
    label = torch.where(healthy.segment == 1, 2 * 10**9, torch.where(healthy.segment == 0, 3, -1))
    plain, large = diagnose(healthy), diagnose(healthy.replaced(segment=label))
    assert [p["through_segment"] for p in large["products"]] == [3, 2 * 10**9]
    for a, b in zip(plain["products"], large["products"], strict=True):
        assert a["raw"]["second_moment"] == b["raw"]["second_moment"]


def test_a_target_that_is_impossible_everywhere_is_no_shift(healthy):
    """With no finite pair left there is nothing to compare, and nothing to accuse."""
    assert "shift_by_one" not in fired(healthy.replaced(logp_target=torch.full_like(healthy.logp_target, -torch.inf)))


def test_a_shift_is_said_first_and_areal_is_told_about_its_alignment(healthy):
    record = diagnose(shifted_target(healthy).replaced(logp_proximal=None))
    assert (record["faults"][0]["check"], record["faults"][0]["fired"]) == ("shift_by_one", True)
    for name, told in (("areal", True), ("verl", False)):
        first = report_sections(record | {"format": name})[1].remarks[0]
        assert first.startswith("FAULT shift_by_one")
        assert ("`advantages`" in first) is told
    assert diagnose(healthy)["faults"][0]["check"] == "zero_variance"


def test_each_detector_tells_its_measured_rates(healthy):
    record = diagnose(shifted_target(healthy))
    rates = {f["check"]: f["rates"] for f in record["faults"]}
    assert {name for name, found in rates.items() if found is not None} == set(DETECTORS)
    assert rates["version_tags"]["power"]["shuffled"] == {"named": 92, "dumps": 100}
    assert rates["temperature"]["false_alarms"]["dumps"] == 2000
    assert rates["low_precision"]["false_alarms"] is None  # a note accuses nobody
    checks = report_sections(record)[1]
    assert checks.remarks[0].endswith("(Power 100%, false alarms 0 of 2000.)")
    assert "detectors: power 81 to 100%" in checks.remarks[-1]
    assert "false alarms 0 of 2000 healthy simulated dumps" in checks.remarks[-1]
