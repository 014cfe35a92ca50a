"""The diagnosis of the bundled rollouts, recomputed from the file with numpy and none of the library's statistics."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.report import diagnose
from testbed.sample_data import partial_rollouts_path

CLOSE = {"rel": 1e-10, "abs": 1e-12}


@pytest.fixture(scope="module")
def file():
    table = pq.read_table(partial_rollouts_path())
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


@pytest.fixture(scope="module")
def record():
    return diagnose(load_dump(partial_rollouts_path()))


def gap(file, name):
    above, below = {
        "mismatch": ("proximal", "behavior"),
        "drift": ("target", "proximal"),
        "total": ("target", "behavior"),
    }[name]
    return file[f"logp_{above}"] - file[f"logp_{below}"]


def per_response(file, values):
    return np.array([values[file["sequence"] == s].sum() for s in np.unique(file["sequence"])])


def test_counts(file, record):
    facts = record["batch"]
    assert (facts["responses"], facts["tokens"], facts["groups"], facts["behaviors"]) == (128, 4224, 32, 2)
    assert facts["mean_reward"] == pytest.approx(per_response(file, file["reward"] * (file["position"] == 0)).mean())
    for part in facts["segments"]:
        chosen = file["segment"] == part["segment"]
        assert part["tokens"] == chosen.sum()
        assert part["responses"] == len(set(file["sequence"][chosen]))


@pytest.mark.parametrize("name", ["mismatch", "drift", "total"])
@pytest.mark.parametrize("segment", [0, 1, None])
def test_gaps(file, record, name, segment):
    found = next(g for g in record["gaps"] if g["gap"] == name and g["segment"] == segment)
    chosen = np.ones(4224, dtype=bool) if segment is None else file["segment"] == segment
    d = gap(file, name)[chosen]
    assert found["tokens"] == len(d)
    assert found["mean"] == pytest.approx(d.mean(), **CLOSE)
    assert found["sd"] == pytest.approx(d.std(), **CLOSE)
    assert found["kl_k1"] == pytest.approx(-d.mean(), **CLOSE)
    assert found["kl_k3"] == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-9)
    assert found["share_far"] == pytest.approx((np.abs(d) > 0.1).mean(), **CLOSE)
    for level, value in found["quantiles"].items():
        assert value == pytest.approx(np.quantile(d, float(level)), **CLOSE)
    place = np.flatnonzero(chosen)[np.abs(d).argmax()]
    assert found["largest"]["log_ratio"] == gap(file, name)[place]
    assert (found["largest"]["response"], found["largest"]["position"]) == (
        file["sequence"][place],
        file["position"][place],
    )


@pytest.mark.parametrize("segment", [0, 1])
def test_products(file, record, segment):
    found = record["products"][segment]
    w = np.exp(per_response(file, gap(file, "total") * (file["segment"] <= segment)))
    raw, applied, capped = found["raw"], found["applied"], np.minimum(w, 2)
    assert found["through_segment"] == segment
    assert found["estimate"] == "sample"
    assert raw["mean"] == pytest.approx(w.mean(), **CLOSE)
    assert raw["second_moment"] == pytest.approx((w**2).mean(), **CLOSE)
    assert raw["chi2"] == pytest.approx((w**2).mean() - 1, **CLOSE)
    assert raw["renyi2"] == pytest.approx(np.log((w**2).mean()), **CLOSE)
    assert raw["ess"] == pytest.approx(w.sum() ** 2 / (w**2).sum(), **CLOSE)
    assert raw["largest"] == pytest.approx(w.max(), **CLOSE)
    assert applied["mean"] == pytest.approx(capped.mean(), **CLOSE)
    assert applied["ess"] == pytest.approx(capped.sum() ** 2 / (capped**2).sum(), **CLOSE)
    cost = np.log(4 / 0.05)  # Maurer and Pontil's bound on both sides
    radius = np.sqrt(2 * capped.var(ddof=1) * cost / 128) + 7 * 2 * cost / (3 * 127)
    assert applied["mean_interval"]["high"] == pytest.approx(min(capped.mean() + radius, 2), **CLOSE)
    assert applied["mean_interval"]["low"] == pytest.approx(max(capped.mean() - radius, 0), **CLOSE)


def test_unit_means(file, record):
    assert len(record["unit_means"]) == 4
    for found in record["unit_means"]:
        chosen = file["segment"] == found["segment"]
        d = gap(file, "total" if found["ratio"].startswith("target") else "mismatch")[chosen]
        assert found["mean"] == pytest.approx(np.exp(d).mean(), **CLOSE)
        assert found["level"] == pytest.approx(1 - 0.01 / 4)
        mixture = np.mean([np.prod(1 - s + s * np.exp(d)) for s in 2.0 ** -np.arange(7)])
        assert found["log10_e_value"] == pytest.approx(np.log10(mixture), rel=1e-8, abs=1e-8)
        assert found["excludes_1"] == ""


def test_bootstrap_intervals_agree_with_the_normal_approximation(file, record):
    for found in record["unit_means"]:
        chosen = file["segment"] == found["segment"]
        d = gap(file, "total" if found["ratio"].startswith("target") else "mismatch")
        excess, count = per_response(file, np.expm1(d) * chosen), per_response(file, 1.0 * chosen)
        excess, count = excess[count > 0], count[count > 0]
        residual = excess - excess.sum() / count.sum() * count
        radius = 3.023 * residual.std(ddof=1) / np.sqrt(len(count)) / count.mean()  # normal quantile of 0.99875
        width = found["interval"]["high"] - found["interval"]["low"]
        assert 0.8 < width / (2 * radius) < 1.2


def test_rules_on_tokens_and_responses(file, record):
    by = {r["rule"]: r for r in record["rules"]["rules"]}
    rho = np.exp(gap(file, "total"))
    tis = np.minimum(rho, 2)
    assert by["tis"]["acted_share"] == pytest.approx((rho > 2).mean(), **CLOSE)
    assert by["tis"]["mean_weight"] == pytest.approx(tis.mean(), **CLOSE)
    assert by["tis"]["second_moment_raw"] == pytest.approx((rho**2).mean(), **CLOSE)
    assert by["tis"]["second_moment_applied"] == pytest.approx((tis**2).mean(), **CLOSE)
    assert by["tis"]["excess"] == pytest.approx((rho - tis).mean(), **CLOSE)
    assert by["icepop"]["acted_share"] == pytest.approx(((rho < 0.5) | (rho > 5)).mean(), **CLOSE)
    w = np.exp(per_response(file, gap(file, "total")))
    assert by["seq_tis"]["mean_weight"] == pytest.approx(np.minimum(w, 2).mean(), **CLOSE)
    assert by["seq_tis"]["second_moment_raw"] == pytest.approx((w**2).mean(), **CLOSE)
    ends = [np.exp(per_response(file, gap(file, "total") * (file["segment"] <= k))) for k in (0, 1)]
    has = [per_response(file, 1.0 * (file["segment"] == k)) > 0 for k in (0, 1)]
    pairs = np.concatenate([end[there] for end, there in zip(ends, has, strict=True)])
    assert by["segment_prefix"]["mean_weight"] == pytest.approx(pairs.mean(), **CLOSE)
    caps = [cap["cap"] for cap in record["advice"]["caps"][:2]]
    cut = [np.minimum(end[there], cap) for end, there, cap in zip(ends, has, caps, strict=True)]
    assert by["spire"]["mean_weight"] == pytest.approx(np.concatenate(cut).mean(), **CLOSE)
    assert by["spire"]["parameters"] == {"cap": "auto"}
    assert record["rules"]["left_out"] == {"sis": ["next_token"], "obrs": ["next_token"]}


def test_intervals_contain_their_estimate_and_name_their_method(record):
    for effect in record["rules"]["rules"]:
        interval = effect["mean_weight_interval"]
        assert interval["low"] <= effect["mean_weight"] <= interval["high"], effect["rule"]
        assert interval["method"] == "bootstrap over responses"


def test_no_fault_and_the_right_reading(record):
    assert [f["check"] for f in record["faults"] if f["fired"] and f["kind"] == "fault"] == []
    assert record["readings"]["advised"] == "full product"
    assert record["readings"]["facts"]["later_on_policy"] is False


def test_the_seed_decides_and_nothing_else_is_random():
    batch = load_dump(partial_rollouts_path()).select(list(range(40)))
    first, again, other = diagnose(batch, seed=3), diagnose(batch, seed=3), diagnose(batch, seed=4)
    assert first == again
    assert first["products"][0]["raw"]["mean_interval"] != other["products"][0]["raw"]["mean_interval"]
    assert first["products"][0]["raw"]["mean"] == other["products"][0]["raw"]["mean"]
