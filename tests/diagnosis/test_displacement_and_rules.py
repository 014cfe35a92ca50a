"""Displacement by confidence and the effects of every rule, recomputed from the batch by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from testbed.core.seeds import SeedTree
from testbed.diagnosis import confidence_bins, rule_effects
from testbed.diagnosis.confidence_bins import EDGES, NAMES, confidence_records
from testbed.diagnosis.detectors.log_odds import log_odds
from testbed.diagnosis.displacement_printed import displacement_section
from testbed.diagnosis.dump import load_dump
from testbed.policies.noise.reported import CONFIDENCE_NAMES
from testbed.sample_data import partial_rollouts_path
from testbed.weighting.registry import RULES
from testbed.weighting.rules import weigh


@pytest.fixture(scope="module")
def batch():
    return load_dump(partial_rollouts_path())


@pytest.fixture(scope="module")
def records(batch):
    return confidence_records(batch, SeedTree("test"))


@pytest.fixture(scope="module")
def effects(batch):
    return rule_effects.rule_records(batch, SeedTree("test"))


@pytest.mark.parametrize("gap", ["mismatch", "total"])
def test_statistics_of_each_bin(batch, records, gap):
    trainer = batch.logp_proximal if gap == "mismatch" else batch.logp_target
    p, q = trainer[batch.mask].double().exp().numpy(), batch.logp_behavior[batch.mask].double().exp().numpy()
    eps = np.log(p / (1 - p)) - np.log(q / (1 - q))
    found = [r for r in records if r["gap"] == gap]
    assert [r["bin"] for r in found] == list(NAMES)
    assert sum(r["tokens"] for r in found) == len(p)
    for r, low, high in zip(found, EDGES, EDGES[1:], strict=False):
        inside = (p >= low) & (p < high)
        e, k = eps[inside], np.log(p / q)[inside]
        assert r["tokens"] == inside.sum()
        assert r["finite"] == 1.0
        assert r["median"] == pytest.approx(np.median(e), abs=1e-5)
        assert r["mad_eps"] == pytest.approx(np.median(abs(e - np.median(e))), rel=1e-3)
        assert r["mad_log_k"] == pytest.approx(np.median(abs(k - np.median(k))), rel=1e-3)
        assert (r["q05"], r["q95"]) == pytest.approx(tuple(np.quantile(e, [0.05, 0.95])), rel=1e-3)
        assert r["as_expected"] == (1 - high <= r["mad_log_k"] / r["mad_eps"] <= 1 - low)
        for name, interval in r["intervals"].items():
            assert interval["low"] <= interval["high"]
            if name in ("mad_eps", "mad_ratio"):
                assert interval["low"] <= r[name] <= interval["high"]


def test_bins_are_those_of_the_paper():
    assert [name.replace("p < ", "p<").replace("p > ", "p>").replace(" - ", "-") for name in NAMES] == list(
        CONFIDENCE_NAMES
    )


def test_certain_tokens_are_counted_and_not_dropped_silently(batch):
    some = batch.mask & (torch.arange(batch.horizon) == 3)
    certain = batch.replaced(logp_behavior=torch.where(some, 0.0, batch.logp_behavior))
    records = confidence_records(certain, SeedTree("test"))
    lost = sum(round((1 - r["finite"]) * r["tokens"]) for r in records if r["gap"] == "mismatch")
    assert lost == int(some.sum())
    assert "eps is finite for " in displacement_section(records).remarks[0]


def test_displacements_that_are_no_engine_noise_leave_the_expected_range(batch, generator):
    """By 4 nats either way: a first-order law no longer holds, and the section says where."""
    far = 4.0 * (2 * torch.randint(0, 2, batch.mask.shape, generator=generator) - 1)
    behavior = torch.nn.functional.logsigmoid(log_odds(batch.logp_proximal) - far).clamp(min=-80)
    records = confidence_records(batch.replaced(logp_behavior=behavior), SeedTree("x"))
    told = [r for r in records if r["gap"] == "mismatch" and "as_expected" in r]
    assert not all(r["as_expected"] for r in told)
    assert "* marks it outside" in displacement_section(records).remarks[0]


def test_few_tokens_and_few_responses(batch):
    few = confidence_records(batch.select(list(range(12))), SeedTree("test"))
    assert all(r["intervals"] is None for r in few if "mad_eps" in r)
    one = confidence_records(batch.select([0]), SeedTree("test"))
    assert all("mad_eps" not in r for r in one if r["tokens"] < confidence_bins.LEAST_TOKENS)
    assert displacement_section(one).says.endswith(".")


def test_every_rule_is_applied_or_left_out_for_a_stated_reason(effects):
    assert {r["rule"] for r in effects["rules"]} | set(effects["left_out"]) == set(RULES)
    assert set(effects["left_out"]) == {"sis", "obrs"}


@pytest.mark.parametrize("rule", ["cis", "kpop", "dppo_tv", "k3_token", "veto", "m2po", "vespo", "topr", "ais"])
def test_effects_of_the_newer_rules(batch, effects, rule):
    found = next(r for r in effects["rules"] if r["rule"] == rule)
    advantage, _ = rule_effects.batch_advantage(batch)
    w = weigh(rule, batch, advantage if RULES[rule].needs_advantage else None)
    first = batch.mask if found["unit"] == "token" else batch.mask & (torch.arange(batch.horizon) == 0)
    value, raw = w.value[first].double().numpy(), w.raw[first].double().numpy()
    assert found["acted_share"] == pytest.approx(w.acted[batch.mask].double().mean().item())
    assert found["bias"] == pytest.approx((value - raw).mean(), abs=1e-12)
    assert found["excess"] == pytest.approx(np.maximum(raw - value, 0).mean(), abs=1e-12)
    assert found["second_moment_applied"] == pytest.approx((value**2).mean())


def test_intervals_of_effects_hold_the_estimate_and_agree_with_the_normal_approximation(batch, effects):
    for r in effects["rules"]:
        for name in ("acted_share", "mean_weight", "bias", "excess", "second_moment_applied"):
            interval = r[f"{name}_interval"]
            assert interval["low"] - 1e-12 <= r[name] <= interval["high"] + 1e-12, (r["rule"], name)
    tis = next(r for r in effects["rules"] if r["rule"] == "tis")
    value = weigh("tis", batch).value.double()
    n = batch.lengths.double()
    residual = value.sum(1) - tis["mean_weight"] * n
    radius = 1.96 * float(residual.std()) / math.sqrt(128) / float(n.mean())
    width = tis["mean_weight_interval"]["high"] - tis["mean_weight_interval"]["low"]
    assert 0.8 < width / (2 * radius) < 1.2


def test_an_infinite_ratio_has_no_bias_and_no_interval(batch):
    far = batch.logp_behavior.clone()
    far[0, 0] = -1e4
    effects = rule_effects.rule_records(batch.replaced(logp_behavior=far), SeedTree("test"))
    tis = next(r for r in effects["rules"] if r["rule"] == "tis")
    assert tis["saturated"] == 1 and tis["bias"] is None and tis["bias_interval"] is None
    assert tis["mean_weight_interval"] is not None


def bin_record(name, low, mad, interval, **more):
    found = {"low": interval[0], "high": interval[1]} if interval else None
    return {
        "gap": "mismatch", "bin": name, "low": low, "high": 1.0, "tokens": 99, "finite": 1.0, "median": 0.0, "q05": -1.0,
        "q95": 1.0, "mad_eps": mad, "mad_log_k": mad, "mad_ratio": 1.0, "as_expected": True,
        "intervals": found and {"mad_eps": found}, **more,
    }  # fmt: skip


def test_the_conclusion_is_that_of_the_intervals():
    def says(*bins):
        return displacement_section([bin_record(*each) for each in bins]).says

    sure, unsure = ("p > 0.999", 0.999), ("p < 0.5", 0.0)
    more = says((*unsure, 0.05, (0.04, 0.055)), (*sure, 0.075, (0.06, 0.09)))
    assert "more where the trainer is surer" in more and "1.5 times as much" in more and "disjoint" in more
    assert "less where the trainer is surer" in says((*unsure, 0.3, (0.2, 0.4)), (*sure, 0.1, (0.05, 0.15)))
    assert says((*unsure, 0.05, (0.04, 0.07)), (*sure, 0.09, (0.06, 0.2))).startswith("No difference seen")
    assert says((*unsure, 0.05, None), (*sure, 0.9, None)).startswith("Too few responses to tell")


def test_the_sample_differs_as_its_table_says(records):
    section = displacement_section(records)
    shown = [r for r in records if r["gap"] == "mismatch"]
    assert shown[0]["intervals"]["mad_eps"]["high"] < shown[3]["intervals"]["mad_eps"]["low"]
    assert "more where the trainer is surer" in section.says
    assert "1.62 here; 1.52, growing with confidence" in section.remarks[0]
