"""Planted faults change the report, each in its own check; the healthy batch sets off none."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path

import pytest
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.sections import plain_lines
from testbed.core.seeds import SeedTree
from testbed.diagnosis import simulated_dumps
from testbed.diagnosis.checks_printed import checks_section
from testbed.diagnosis.detectors.rates import HEALTHY, STALER
from testbed.diagnosis.detectors.registry import DETECTORS
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.faults import fault_records
from testbed.diagnosis.printed import report_sections
from testbed.diagnosis.report import diagnose
from testbed.diagnosis.unit_mean import unit_mean_scores
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
    assert checks.remarks[0].endswith("false alarms 0 of 2000 healthy simulated dumps, none of them very stale.)")
    assert "detectors: power 81 to 100%" in checks.remarks[-1]
    assert "false alarms 0 of 2000 healthy simulated dumps" in checks.remarks[-1]


def test_the_healthy_dumps_behind_the_false_alarms_are_described(healthy):
    """As `simulated_dumps` draws them, and as the committed notebook found them to be accused where they are staler."""
    said = " ".join(report_sections(diagnose(healthy.select(list(range(24)))))[1].remarks)
    assert HEALTHY in said and STALER in said
    sizes, lengths = simulated_dumps.RESPONSES, (min(simulated_dumps.HORIZONS) // 2, max(simulated_dumps.HORIZONS))
    numbers = [min(sizes), max(sizes), *lengths, max(simulated_dumps.VERSIONS)]
    assert [int(number) for number in re.findall(r"\d+", HEALTHY)] == numbers
    notebook = (Path(__file__).parents[2] / "notebooks" / "10_diagnose_your_run.ipynb").read_text()
    without, given = re.findall(r"Accused: (\d+) of (\d+) healthy batches", notebook)
    assert re.findall(r"(\d+) of (\d+)", STALER) == [without, given]


# --------------------------------------------------------------------------------------------- checks that cannot run
def checked(batch, products=()):
    return {f["check"]: f for f in fault_records(batch, batch.facts, list(products), unit_mean_scores(batch))}


def tagged(versions=4):
    batch = simulated_dumps.simulated_dump(SeedTree("tagged"), drift=0.1, tagged=True)
    return batch.replaced(version=batch.require("version", "tagged").clamp(max=versions - 1))


def cut(batch, rows, length):
    return batch.select(list(range(rows))).replaced(
        mask=batch.mask[:rows] & (torch.arange(batch.horizon) < length), version=None, logp_proximal=None
    )


def first_tokens(batch):
    """1 at the first nine tokens of the first response, two of which are surer than the check asks for; else 0."""
    place = torch.arange(batch.mask.numel()).reshape(batch.mask.shape)
    return (place < 9).long()


def one_token():
    return cut(tagged(), 1, 1).replaced(engine=torch.zeros(1, tagged().horizon, dtype=torch.int64))


def alike():
    """Log-odds of one value, an engine's noise aside."""
    batch = tagged()
    noise = 1e-3 * torch.arange(batch.horizon).remainder(7) * torch.ones(batch.mask.shape)
    return batch.replaced(logp_target=noise - 1, logp_behavior=noise.flip(1) - 1, logp_proximal=None)


LACKING = {  # what the batch is, which check it is not enough for, and why
    "no version": (lambda: tagged().replaced(version=None), "version_tags", "no column `version`"),
    "no tags to compute anew by": (lambda: tagged().replaced(version=None), "recomputed", "no column `version` or `engine`"),
    "no labels": (lambda: tagged().replaced(version=None), "label_mixture", "no column `version` or `engine`"),
    "one version": (lambda: tagged(1), "version_tags", "one version: nothing to compare"),
    "one version, one engine": (
        lambda: tagged(1).replaced(engine=torch.zeros_like(tagged().segment)), "recomputed",
        "one version and one engine: nothing has to differ",
    ),
    "few legs": (lambda: tagged().select(list(range(9))), "version_tags", "of 30 responses or parts of one version"),
    "few stale tokens": (
        lambda: tagged(1).replaced(version=1 - first_tokens(tagged())), "recomputed", "7 of 32 tokens that have to differ",
    ),
    "few neighbors": (lambda: cut(tagged(), 2, 6), "shift_by_one", "10 of 16 pairs of neighboring tokens"),
    "few tokens": (lambda: cut(tagged(), 20, 6), "temperature", "119 of 200 tokens with finite log-odds"),
    "log-odds alike": (alike, "temperature", "log-odds too alike"),
    "few responses to cut": (lambda: cut(tagged(), 19, 99), "truncated_mass", "19 of 20 responses"),
    "few responses for a mean": (lambda: cut(tagged(), 19, 99), "unit_mean", "19 of 20 responses"),
    "few responses for a sign": (lambda: cut(tagged(), 19, 99), "negative_divergence", "19 of 20 responses"),
    "an impossible token": (
        lambda: tagged().replaced(logp_target=torch.where(torch.arange(tagged().horizon) < 30, -math.inf, -1.0).expand(
            tagged().mask.shape), logp_proximal=None, segment=torch.zeros_like(tagged().segment)),
        "negative_divergence", "no segment has a finite mean",
    ),
    "few values": (lambda: cut(tagged(), 1, 9), "low_precision", "8 of 16 distinct log-probs"),
    "no tail": (tagged, "heavy_tail", "0 of 25 responses"),
    "one response": (lambda: cut(tagged(), 1, 9), "single_groups", "one response"),
    "one token": (one_token, "zero_variance", "no segment has two tokens"),
    "nothing to mix": (one_token, "label_mixture", "no two tokens to compare"),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKING)
def test_a_check_that_lacks_something_has_not_run_and_says_what(case):
    make, check, why = LACKING[case]
    found = checked(make())[check]
    assert (found["fired"], found["ran"]) == (False, False)
    assert why in found["why"]


def test_a_batch_that_has_everything_is_checked_for_everything():
    """A tail needs the products, which are not among the arguments here."""
    assert [name for name, f in checked(tagged()).items() if not f["ran"]] == ["heavy_tail"]


def test_a_detector_that_did_not_run_measured_nothing():
    """`why_not` follows the conditions of `measure`; truncated mass has a trace that single tokens leave."""
    batches = [make() for make, _, _ in LACKING.values()]
    for name in set(DETECTORS) - {"truncated_mass"}:
        module = importlib.import_module(f"testbed.diagnosis.detectors.{name}")
        assert [module.measure(batch) for batch in batches if module.why_not(batch)] == [{}] * sum(
            bool(module.why_not(batch)) for batch in batches
        )
        if name not in (
            "shift_by_one",
            "low_precision",
        ):  # these measure nothing on columns that are equal, or unrounded
            assert all(module.measure(batch) for batch in batches if not module.why_not(batch))


def test_what_fires_on_little_has_run():
    """A cut to single tokens, and a mean far above 1, show in few responses too."""
    few = tagged().select(list(range(6))).replaced(logp_proximal=None)
    certain = few.replaced(
        logp_behavior=torch.zeros_like(few.logp_behavior), logp_target=torch.full_like(few.logp_target, -0.3)
    )
    found = checked(certain)
    assert (found["truncated_mass"]["fired"], found["truncated_mass"]["ran"]) == (True, True)
    assert found["filled_with_zero"]["why"] == "`truncated_mass` explains tokens of log-prob 0"
    far = few.replaced(logp_behavior=few.logp_target.double() - 2.0, logp_target=few.logp_target.double())
    assert (checked(far)["unit_mean"]["fired"], checked(far)["unit_mean"]["ran"]) == (True, True)


def test_checks_that_did_not_run_are_counted_apart(healthy):
    bare = healthy.replaced(logp_proximal=None, engine=None, group=torch.arange(128) // 2)
    section = checks_section(list(checked(bare.replaced(version=None)).values()))
    assert section.says.startswith("No sign of a recording fault in 7 checks; 3 not checked; 1 of 5 notes")
    missed, quiet, rates = section.remarks[-3:]
    assert missed.startswith("Not checked: label_mixture (no column `version` or `engine`), ")
    assert "version_tags (no column `version`)" in missed
    assert quiet.startswith("Quiet: ") and "version_tags" not in quiet and "recomputed" not in quiet
    assert "power 81 to 100%" in rates
    shifted = checks_section(list(checked(shifted_target(bare)).values()))
    assert re.match(r"Look at the recording before the rest: \d of 7 checks failed; 3 not checked\.", shifted.says)


def test_a_record_from_before_this_state_is_still_printed(healthy):
    records = [{k: v for k, v in f.items() if k not in ("ran", "why")} for f in checked(healthy).values()]
    assert checks_section(records).says.startswith("No sign of a recording fault in 10 checks; 1 of 6 notes")


# --------------------------------------------------------------------------------------------- dumps of a few responses
def one_line(tmp_path):
    """The smallest dump a user would try: one response of six tokens."""
    line = {
        "logp_behavior": [-0.5, -1.2, -0.3, -2.0, -0.7, -0.1],
        "logp_target": [-0.52, -1.18, -0.31, -1.98, -0.72, -0.1],
    }
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(line | {"reward": 1.0}))
    return load_dump(path)


def told(batch):
    sections = report_sections(diagnose(batch))
    return {s.title: s for s in sections}, "\n".join(" ".join(plain_lines(s)) for s in sections)


SOOTHING = ("No sign of", "within noise", "nothing contradicts", "No cap is needed", "which is noise", "which is bias")


def test_one_response_of_six_tokens_gets_no_conclusion_and_no_absurd_number(tmp_path):
    sections, text = told(one_line(tmp_path))
    assert [word for word in (*SOOTHING, "[none]", "e+0", "inf", "power ") if word in text] == []
    assert sections["CHECKS"].says.startswith("Too little to tell whether the recording is right: 2 of 10 checks")
    assert "cannot be told: 1 of the 20 responses" in sections["E[w] = 1?"].says
    assert sections["E[w] = 1?"].header[3] == "mean" and sections["E[w] = 1?"].rows[0][-1] == "unknown"
    for title in ("PRODUCTS THROUGH EACH SEGMENT", "RULES"):
        assert sections[title].says.startswith("One response tells nothing")
        assert not sections[title].rows
    for title in ("ADVISED CAP", "ADVISED REPLAY SHARE"):
        assert "is advised: 1 of the 20 responses that an interval takes" in sections[title].says
        assert not sections[title].rows
    assert "decoupled_ppo" in sections["RULES"].remarks[0]


@pytest.mark.parametrize("rows", [1, 2, 19])
def test_a_few_responses_get_numbers_without_a_conclusion(healthy, rows):
    for batch in (healthy.select(list(range(rows))), healthy.select(list(range(rows))).replaced(logp_proximal=None)):
        sections, text = told(batch)
        assert [word for word in (*SOOTHING[1:], "[none]", "e+0", "inf ") if word in text] == []
        assert "Fewer than 20 responses" in sections["BATCH"].remarks[-1]
        assert sections["ADVISED CAP"].says.startswith("No cap is advised")
        assert [line for s in sections.values() for line in plain_lines(s) if len(line) > 80] == []
        kept = [name for name, *_ in sections["PRODUCTS THROUGH EACH SEGMENT"].rows if "[95%]" in name]
        assert kept == ([] if rows == 1 else ["mean min(W_(k), 2) [95%]"])  # the one interval that is valid at every n


def test_twenty_responses_get_their_intervals(healthy):
    sections, text = told(healthy.select(list(range(20))))
    assert "mean W_(k) [95%]" in text and "Fewer than" not in text
    assert sections["ADVISED CAP"].rows[1][0] == "95% interval"
