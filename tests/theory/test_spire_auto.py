"""SPIRE with O1's caps in enumerated worlds: least where O1 applies, and no claim where it does not."""

import math

import numpy as np
import pytest
import torch

from theory.records import record
from theory.spire_errors import (
    CHOICES,
    DRAWS,
    LEVELS,
    leveled_worlds,
    signal_errors,
    spire_rows,
    spire_table,
    true_caps,
    truths,
    with_behavior_weight,
)
from theory.worlds import standard_worlds

OTHERS = CHOICES[1:]


@pytest.fixture(scope="module")
def rows():
    return spire_rows()


def test_auto_is_least_on_every_instance_where_o1_applies_and_strictly_on_some(rows):
    constant = [row for row in rows if row["o1_applies"]]
    assert {row["signal"] for row in constant} == {"constant"}
    assert len(constant) == len(LEVELS) * len(standard_worlds()) * len(DRAWS) == 165
    for row in constant:
        for choice in OTHERS:
            assert row["mse"]["auto"] <= row["mse"][choice] * (1 + 1e-12), (row, choice)
    strictly = [row for row in constant if all(row["mse"]["auto"] < 0.9 * row["mse"][c] for c in OTHERS)]
    assert {row["level"] for row in strictly} == set(LEVELS)


def test_for_other_signals_it_is_not_always_least(rows):
    for signal in ("value", "gradient"):
        for choice in OTHERS:
            assert min(row["regret"][choice] for row in rows if row["signal"] == signal) < -1e-3


def test_the_cap_matters_more_the_farther_and_not_at_all_on_policy(rows):
    largest = [max(row["regret"]["none"] for row in rows if row["level"] == level) for level in LEVELS]
    assert largest == sorted(largest) and largest[0] < 1 < largest[2]
    for row in rows:
        if row["world"] == "on_policy":
            assert not row["matters"] and all(r == pytest.approx(0, abs=1e-12) for r in row["regret"].values())


def test_errors_of_one_world_by_hand():
    """Two tokens, one per segment: W_(1) = rho_1, W_(2) = rho_1 rho_2; every sum is written out."""
    world = next(w for w in standard_worlds() if w.name == "two_segments")
    pi, mu0, mu1 = (p.table.exp().numpy() for p in (world.target, *world.behaviors))
    n, caps = 16, true_caps(world.law, 16)
    outcomes = [(a, b) for a in (0, 1) for b in (0, 1)]
    reward = {y: float(r) for y, r in zip(outcomes, world.env.rewards, strict=True)}
    mu = {(a, b): mu0[0, a] * mu1[1 + a, b] for a, b in outcomes}
    first = {(a, b): pi[0, a] / mu0[0, a] for a, b in outcomes}
    whole = {(a, b): first[a, b] * pi[1 + a, b] / mu1[1 + a, b] for a, b in outcomes}
    for k, w in enumerate((first, whole)):
        assert caps[k] - 1 == pytest.approx((n - 1) * sum(mu[y] * max(w[y] - caps[k], 0) for y in outcomes), rel=1e-10)

    def score(y):
        g = np.zeros((3, 2))
        g[0, y[0]], g[1 + y[0], y[1]] = 1, 1
        g[0] -= pi[0]
        g[1 + y[0]] -= pi[1 + y[0]]
        return g

    target = {(a, b): pi[0, a] * pi[1 + a, b] for a, b in outcomes}
    truth = sum(target[y] * reward[y] * score(y) for y in outcomes)
    terms = {}
    for y in outcomes:
        weight = np.full((3, 1), min(whole[y], caps[1]))
        weight[0] = min(first[y], caps[0])
        terms[y] = weight * reward[y] * score(y)
    mean = sum(mu[y] * terms[y] for y in outcomes)
    variance = sum(mu[y] * ((terms[y] - mean) ** 2).sum() for y in outcomes)
    found = signal_errors(world, truths(world), caps)["gradient"]
    assert found == pytest.approx((((mean - truth) ** 2).sum(), variance), rel=1e-10)
    row = next(
        r for r in spire_rows() if (r["level"], r["world"], r["n"], r["signal"]) == ("stale", world.name, n, "gradient")
    )
    assert row["mse"]["auto"] == pytest.approx(found[0] + found[1] / n, rel=1e-12)


def test_without_a_cap_the_constant_errs_by_chi2_over_n(rows):
    for level, world in leveled_worlds():
        w = (world.batch.logp_target - world.batch.logp_behavior).double()
        w = torch.where(world.batch.mask, w, 0.0).sum(1).exp()
        chi2 = float(world.law.expect(w**2)) - 1
        for row in rows:
            if (row["level"], row["world"], row["signal"]) == (level, world.name, "constant"):
                assert row["mse"]["none"] == pytest.approx(chi2 / row["n"], rel=1e-9, abs=1e-14)


def test_a_behavior_weight_mixes_token_by_token():
    for world in standard_worlds():
        near = with_behavior_weight(world, 0.25)
        for (p, old), (q, new) in zip(world.schedule.branches(), near.schedule.branches(), strict=True):
            assert p == q
            want = 0.75 * world.target.table.exp() + 0.25 * old.policies[0].table.exp()
            torch.testing.assert_close(new.policies[0].table.exp(), want, rtol=1e-12, atol=1e-14)


def test_the_record_says_where_auto_must_win_and_where_nothing_matters():
    found = record("spire_auto")
    assert found["auto_must_win"]["rows"] == 165
    assert 0 < found["auto_must_win"]["indifferent"] < 165 - found["auto_must_win"]["strictly_least"]
    assert {"level": "near", "world": "on_policy"} in found["indifferent"]
    assert "constant" not in {row["signal"] for row in found["auto_loses"]} and found["auto_loses"]
    assert all(math.isfinite(e) for row in found["rows"] for e in row["mse"].values())
    assert found["summary"] == spire_table()


def test_the_summary_counts_the_rows(rows):
    for line in spire_table():
        assert line["worlds"] == 11
        assert line["auto_least"] == 11 or line["signal"] != "constant"
        some = [r for r in rows if (r["signal"], r["level"], r["n"]) == (line["signal"], line["level"], line["n"])]
        assert line["none_largest"] == max(
            r["mse"]["none"] / r["mse"]["auto"] - 1 for r in some if r["mse"]["auto"] > 1e-15
        )
