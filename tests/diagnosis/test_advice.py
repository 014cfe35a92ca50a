"""The advised caps and replay share, recomputed from the file with numpy and none of the library's formulas."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar

from testbed import cli
from testbed.core.errors import InputError
from testbed.core.sections import plain_lines
from testbed.core.seeds import SeedTree
from testbed.diagnosis import advised_share
from testbed.diagnosis.advice import advice_records
from testbed.diagnosis.advice_printed import advice_sections
from testbed.diagnosis.advised_cap import WORST
from testbed.diagnosis.advised_share import Terms, share_record
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.report import diagnose
from testbed.diagnosis.response_draws import OwnedWeights, response_draws
from testbed.sample_data import partial_rollouts_path
from testbed.weighting.segment import auto_caps
from tests.weighting.worlds import batch_with_ratios

CLOSE = {"rel": 1e-10, "abs": 1e-14}


@pytest.fixture(scope="module")
def batch():
    return load_dump(partial_rollouts_path())


@pytest.fixture(scope="module")
def advice(batch):
    return advice_records(batch, SeedTree("advice"), 1.0, 0.25)


@pytest.fixture(scope="module")
def weights():
    """Products through segments 0 and 1, token ratios, and rewards minus the mean of their prompt."""
    table = pq.read_table(partial_rollouts_path())
    file = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    gap, rows = file["logp_target"] - file["logp_behavior"], np.unique(file["sequence"])
    ends = [np.exp([(gap * (file["segment"] <= k))[file["sequence"] == s].sum() for s in rows]) for k in (0, 1)]
    first = [np.flatnonzero(file["sequence"] == s)[0] for s in rows]
    reward, prompt = file["reward"][first].astype(float), file["prompt"][first]
    centered = reward - np.array([reward[prompt == p].mean() for p in prompt])
    return [*ends, np.exp(gap)], file["sequence"], centered


def root(w, n, probs=None):
    """O1's cap by bracketing."""
    probs = np.full(len(w), 1 / len(w)) if probs is None else probs
    return brentq(lambda c: c - 1 - (n - 1) * probs @ np.maximum(w - c, 0), 1.0, max(w.max(), 1.0) + 1, xtol=1e-14)


def error(w, cap, n):
    """Squared bias + variance / n with a mean of 1 where nothing is cut off."""
    cut = np.maximum(w - cap, 0).mean()
    return cut**2 + ((np.minimum(w, cap) ** 2).mean() - (1 - cut) ** 2) / n


def test_caps_and_what_other_choices_cost(advice, weights):
    n = 128
    assert [cap["through_segment"] for cap in advice["caps"]] == [0, 1, None]
    for found, w in zip(advice["caps"], weights[0], strict=True):
        cap, d2 = root(w, n), (w**2).mean()
        assert (found["n"], found["theorem"], found["advised"]) == (n, "O1", "cap")
        assert found["cap"] == pytest.approx(cap, rel=1e-10)
        assert (found["above"], found["largest"]) == ((w > cap).sum(), pytest.approx(w.max(), **CLOSE))
        least = minimize_scalar(lambda c, w=w: error(w, c, n), bounds=(1, w.max()), method="bounded").fun
        assert found["mse"] == pytest.approx(least, rel=1e-6) and found["mse"] <= least * (1 + 1e-12)
        closed = {
            "O3": (n * d2**2 / 8) ** (1 / 3),
            "O4": 1 + (n * (d2 - 1) ** 2 / 8) ** (1 / 3),
            "O9": 1 + (n - 1) * math.sqrt(d2 - 1) / (2 * math.sqrt(n)),
        }
        others = {**found["closed_forms"], "sqrt_n": found["sqrt_n"], "none": found["none"]}
        for name, c in {**closed, "sqrt_n": math.sqrt(n), "none": math.inf}.items():
            assert others[name]["cap"] == (None if c == math.inf else pytest.approx(c, **CLOSE))
            assert others[name]["mse"] == pytest.approx(error(w, c, n), **CLOSE)
            assert others[name]["regret"] == pytest.approx(error(w, c, n) / error(w, cap, n) - 1, rel=1e-6)
            assert others[name]["regret"] > 0


def test_the_advised_caps_are_those_that_spire_takes(batch, advice):
    assert [cap["cap"] for cap in advice["caps"][:2]] == pytest.approx(auto_caps(batch).tolist(), **CLOSE)


def test_every_draw_of_responses_gets_its_exact_cap(weights):
    samples, sequence, _ = weights
    owner = np.unique(sequence, return_inverse=True)[1]
    for w, who in zip(samples, (np.arange(128), np.arange(128), owner), strict=True):
        prepared = OwnedWeights(w, who, 128)
        for counts in response_draws(128, SeedTree("draws"), 25):
            probs = counts[who] / counts[who].sum()
            assert prepared.cap(counts) == pytest.approx(root(w, 128, probs), rel=1e-10)


def test_a_draw_without_the_large_weights_is_not_read_off_the_tail():
    prepared = OwnedWeights(np.array([0.1] * 18 + [1.2, 40.0]), np.arange(20), 20)
    counts = np.array([1] * 18 + [2, 0])
    assert prepared.floor > 1.2
    assert prepared.cap(counts) == pytest.approx(root(np.array([0.1] * 18 + [1.2] * 2), 20), rel=1e-10)


def test_intervals_hold_what_whole_responses_drawn_anew_say(advice, weights):
    samples, sequence, _ = weights
    owner = np.unique(sequence, return_inverse=True)[1]
    rng = np.random.default_rng(11)
    for found, w, who in zip(advice["caps"], samples, (np.arange(128), np.arange(128), owner), strict=True):
        rows = [np.flatnonzero(who == i) for i in range(128)]
        caps = [root(w[np.concatenate([rows[i] for i in rng.integers(0, 128, 128)])], 128) for _ in range(600)]
        low, high = found["interval"]["low"], found["interval"]["high"]
        assert low < found["cap"] < high
        assert 0.9 < np.mean([low <= c <= high for c in caps]) < 0.99


def test_the_share_is_the_best_of_all_shares(advice, weights):
    (_, w, _), _, a = weights
    found, cap = advice["replay"], root(w, 128)
    assert found["theorems"] == ["K1", "O7", "O1"]
    v_f, v_r, b = a.var(), (np.minimum(w, cap) * a).var(), (np.maximum(w - cap, 0) * np.abs(a)).mean()
    for name, value in {"v_fresh": v_f, "v_replay": v_r, "bias": b}.items():
        assert found[name] == pytest.approx(value, rel=1e-9)
    assert found["bias_signed"] == pytest.approx(-(np.maximum(w - cap, 0) * a).mean(), rel=1e-9)
    shares = np.linspace(0, 1, 10001)
    mse = (shares * b) ** 2 + (shares * v_r + (1 - shares) * v_f) * (0.25 * shares + 1 - shares) / 128
    assert found["share"] == shares[mse.argmin()] == 0.0
    assert (found["regime"], found["stale"], found["budget"]) == ("none", 128, 128.0)
    assert found["mse"] == pytest.approx(mse.min(), rel=1e-9) and found["mse_all_fresh"] == pytest.approx(v_f / 128)
    assert found["multipliers"]["at_least_0"] == pytest.approx((mse[1] - mse[0]) / shares[1], rel=1e-3)
    assert found["multipliers"]["at_most_1"] == 0.0
    assert sum(found["regimes"].values()) == pytest.approx(1.0)
    assert 0.5 < found["regimes"]["none"] < 0.9 and found["interval"]["high"] == 1.0


def test_a_small_cap_makes_the_share_interior(weights):
    (_, w, _), _, a = weights
    found = share_record(Terms(w, a, np.ones(128, dtype=bool)), 1.0, 2.0, 0.5)
    v_f, v_r, b = a.var(), (np.minimum(w, 1) * a).var(), (np.maximum(w - 1, 0) * np.abs(a)).mean()

    def mse(x):
        return (x * b) ** 2 + (x * v_r + (1 - x) * v_f) * (0.5 * x + 2 * (1 - x)) / (2 * 128)

    best = minimize_scalar(mse, bounds=(0, 1), method="bounded", options={"xatol": 1e-9})
    assert (found["regime"], found["budget"]) == ("interior", 256.0)
    assert found["share"] == pytest.approx(best.x, abs=1e-6) and 0.01 < best.x < 0.5
    assert found["mse"] == pytest.approx(best.fun, rel=1e-10)
    assert max(found["multipliers"].values()) == 0.0


def on_policy(batch):
    return batch.replaced(logp_behavior=batch.logp_target)


def test_on_policy_no_cap_acts_and_the_share_is_a_corner_or_a_tie(batch):
    cheap = advice_records(on_policy(batch), SeedTree("x"), 1.0, 0.25)
    same = advice_records(on_policy(batch), SeedTree("x"), 1.0, 1.0)
    assert [(cap["advised"], cap["above"], cap["cap"]) for cap in cheap["caps"]] == [("none", 0, 1.0)] * 3
    assert (cheap["replay"]["regime"], cheap["replay"]["share"], cheap["replay"]["bias"]) == ("all", 1.0, 0.0)
    assert cheap["replay"]["regimes"] == {"all": 1.0}
    assert (same["replay"]["regime"], same["replay"]["share"], same["replay"]["other"]) == ("tie", 0.0, 1.0)
    first, second = advice_sections(same)
    assert first.says.startswith("No cap is needed: no product W_(1) exceeds O1's cap of 1.00")
    assert "tie of 0% or 100%" in second.says


def test_rounding_of_recorded_log_probs_calls_for_no_cap(batch):
    noise = 1e-7 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noisy = batch.replaced(logp_behavior=(batch.logp_target.double() - noise.abs()).to(batch.logp_target.dtype))
    assert {cap["advised"] for cap in advice_records(noisy, SeedTree("x"), 1.0, 0.25)["caps"]} == {"none"}


@pytest.mark.parametrize("rows", [1, 2, 19])
def test_few_responses_get_numbers_but_no_advice(batch, rows):
    found = diagnose(batch.select(list(range(rows))))["advice"]
    assert all(cap["interval"] is None and cap["advised"] in ("none", "too few") for cap in found["caps"])
    assert found["caps"][-1]["advised"] == "too few"
    assert found["replay"]["interval"] is None and found["replay"]["regimes"] is None
    caps, share = advice_sections(found)
    assert share.says.startswith("No replay share is advised")
    if rows == 1:
        assert {cap["cap"] for cap in found["caps"]} == {1.0}
    if found["caps"][-2]["advised"] == "too few":
        assert caps.says.startswith(f"No cap is advised: {rows} of the 20 responses")


def test_without_any_advantage_there_is_no_share(batch):
    found = advice_records(batch.replaced(reward=torch.ones_like(batch.reward)), SeedTree("x"), 1.0, 0.25)
    assert found["replay"]["share"] is None
    assert "every advantage is 0" in advice_sections(found)[1].says


def test_nothing_but_padding_is_refused(batch):
    with pytest.raises(InputError, match="a diagnosis needs at least one token"):
        diagnose(batch.replaced(mask=torch.zeros_like(batch.mask)))


@pytest.mark.parametrize("costs", [(0.0, 0.25), (1.0, -0.1), (math.nan, 0.25), (1.0, math.inf)])
def test_costs_out_of_range_are_refused(batch, costs):
    with pytest.raises(InputError, match="cost_"):
        advice_records(batch, SeedTree("x"), *costs)


def test_overflowing_and_impossible_products_leave_finite_advice():
    ratios = np.zeros((24, 3))
    ratios[0], ratios[1] = 1e4, -math.inf
    found = advice_records(batch_with_ratios(ratios), SeedTree("x"), 1.0, 0.25)
    assert all(math.isfinite(cap["cap"]) for cap in found["caps"])
    json.dumps(found, allow_nan=False)


def test_only_stale_responses_stand_for_replay(batch):
    half = torch.arange(batch.batch_size)[:, None] < 64
    mixed = batch.replaced(logp_behavior=torch.where(half, batch.logp_target, batch.logp_behavior))
    found = advice_records(mixed, SeedTree("x"), 1.0, 0.25)["replay"]
    assert found["stale"] == 64
    a = np.array((mixed.reward.double() - _group_means(mixed)).tolist())
    w = (mixed.logp_target - mixed.logp_behavior).double().mul(mixed.mask).sum(1).exp().numpy()
    assert found["v_fresh"] == pytest.approx(a.var(), rel=1e-6)
    assert found["v_replay"] == pytest.approx((np.minimum(w, found["cap"]) * a)[64:].var(), rel=1e-6)


def _group_means(batch):
    reward = batch.reward.double()
    return torch.stack([reward[batch.group == g].mean() for g in batch.group])


def test_the_printed_advice_fits_and_starts_with_the_conclusion(batch, advice):
    many = torch.where(batch.mask, torch.arange(batch.horizon).expand(batch.mask.shape) // 8, -1)
    huge = batch.replaced(logp_behavior=batch.logp_behavior - 0.5)
    records = [advice, *(advice_records(b, SeedTree("x"), 1e6, 123456.0) for b in (batch.replaced(segment=many), huge))]
    for record in records:
        for section in advice_sections(record):
            assert [line for line in plain_lines(section) if len(line) > 80] == []
            assert section.says.endswith(".")
    caps, share = advice_sections(advice)
    assert caps.says.startswith("Cap W_(1) at 8.61 [")
    assert "rests on the 1 response above it" in caps.remarks[1]
    assert share.says.startswith("Replay nothing at these costs, but only by a proxy (K1), and ")
    assert "Of 8 segments" in advice_sections(records[1])[0].remarks[-1]


def test_the_defaults_of_command_and_library_are_the_same():
    command, library = (inspect.signature(f).parameters for f in (cli.diagnose, diagnose))
    for name, value in {"cost_fresh": advised_share.COST_FRESH, "cost_replay": advised_share.COST_REPLAY}.items():
        assert command[name].default == library[name].default == value


def test_what_is_said_of_the_regret_table_is_in_it():
    from theory.records import record

    largest = record("regret")["largest"]
    for name, times in WORST.items():
        assert 1 + largest[name.replace(" ", "_")]["regret"] == pytest.approx(times, rel=0.02)
