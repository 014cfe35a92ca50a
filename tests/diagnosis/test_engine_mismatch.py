"""`testbed engines`: what is attributed adds up, and what must be exactly 0 is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.core.sections import plain_lines
from testbed.diagnosis import engine_mismatch
from testbed.diagnosis.engine_mismatch import engine_report, exact_zero, measured, sampling_numerics, untrained


@pytest.mark.parametrize("experts", [0, 8])
def test_every_ingredient_is_measured_alone_and_the_fixed_order_has_none(experts):
    model = untrained(experts, seed=1)
    found = {m.ingredient: m for m in measured(model, seed=1, responses=16)}
    router = ["router"] if experts else []
    replayed = ["all, replayed"] if experts else []
    assert list(found) == ["none", "dtype", "weights", "reduction", *router, "cache", "all", *replayed, "fixed"]
    assert found["none"].largest_log_ratio == found["fixed"].largest_log_ratio == 0.0
    assert 0 < found["reduction"].largest_log_ratio < 1e-4 < found["dtype"].largest_log_ratio
    assert found["all"].sampler == sampling_numerics(experts)
    for m in found.values():
        assert sum(m.flips) == (m.tokens if experts else 0)
    if experts:
        assert sum(found["all, replayed"].flips[1:]) == 0


def test_a_fixed_order_that_is_none_would_be_seen(monkeypatch):
    real = engine_mismatch.attribute

    def unfixed(policy, sampler, tokens, mask):
        found = real(policy, sampler, tokens, mask)
        return [*found[:-1], found[-2]]

    monkeypatch.setattr(engine_mismatch, "attribute", unfixed)
    assert measured(untrained(0, seed=1), seed=1, responses=16)[-1].largest_log_ratio > 0


def test_the_report_says_which_ingredient_leads_and_how_layers_flip():
    models = {"dense": untrained(0, seed=2), "experts": untrained(8, seed=2)}
    sections, record = engine_report(models, seed=2)
    assert list(record) == ["dense", "experts"]
    dense, experts = ("\n".join(plain_lines(s)) for s in sections)
    assert "tokens by flipped layers" in experts
    assert "flipped" not in dense
    for name, text in (("dense", dense), ("experts", experts)):
        alone = [m for m in record[name] if m["ingredient"] in ("dtype", "weights", "reduction", "router", "cache")]
        assert f"Alone, {max(alone, key=lambda m: m['kl'])['ingredient']} makes the most mismatch" in text
        assert all(len(line) <= 100 for line in text.splitlines())


def test_a_spread_of_few_tokens_is_left_out_and_0_is_exactly_0(monkeypatch):
    model = untrained(8, seed=2)
    found = measured(model, seed=2, responses=4)
    by_name = {m.ingredient: m for m in found}
    planted = replace(by_name["all"], flips=(40, 20, 19, 1, 0), sd_by_flips=(0.25, 0.5, 0.75, 0.0, float("nan")))
    tiny = replace(by_name["reduction"], kl=2.4e-14)
    swapped = {"all": planted, "reduction": tiny}
    monkeypatch.setattr(engine_mismatch, "measured", lambda *_: [swapped.get(m.ingredient, m) for m in found])
    (section,), _ = engine_report({"experts": model})
    assert section.remarks[1].endswith(
        "differently: 0: 0.250, 1: 0.500. Left out, with fewer than 20 tokens: 2 (19), 3 (1)."
    )
    rows = {row[0]: row for row in section.rows}
    assert rows["reduction"][3] == "2e-14" == exact_zero(tiny.kl)
    assert rows["none"][1:4] == rows["fixed"][1:4] == ("0", "0", "0")
