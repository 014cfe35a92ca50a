"""The door: what it refuses and how it says so, and what it looks up."""

import math

import pytest
import torch

from testbed.core.errors import InputError, MissingField
from testbed.stats import token_divergence
from testbed.weighting import binary_divergence, clip, confidence, granularity, mask, registry, rejection, truncate
from testbed.weighting.registry import PLANNED
from testbed.weighting.rules import RULES, weigh
from tests.weighting.planting import plant
from tests.weighting.worlds import PAIRS, random_batch, runnable


@pytest.fixture
def batch(rng):
    return random_batch(rng)


# ---------------------------------------------------------------------------------------------- the registry
def test_the_registry_is_complete():
    for name, rule in RULES.items():
        assert rule.name == name
        assert rule.granularity in rule.granularities
        assert set(rule.granularities) <= set(granularity.GRANULARITIES)
        for text in (rule.summary, rule.formula, rule.source, rule.differs):
            assert text
            assert "\n" not in text
    assert not set(PLANNED) & set(RULES)
    assert [name for name, rule in RULES.items() if rule.needs_advantage] == [
        "gspo", "ppo_clip", "decoupled_ppo", "dual_clip", "dppo_tv", "dppo_kl", "opsm",
        "m2po", "topr", "vespo", "mu_grpo",
    ]  # fmt: skip


def test_results_say_what_was_asked(batch):
    w = weigh("icepop", batch, high=4.0, granularity="segment")
    assert (w.rule, w.granularity, dict(w.params)) == ("icepop", "segment", {"low": 0.5, "high": 4.0})


# parameters under which gates narrow around 1, or far from it, keep some of the responses and drop others
ACTING = {
    "geo_mask": {"low": 0.7, "high": 3.0}, "k1_sequence": {"low": 0.7, "high": 3.0},
    "k3_sequence": {"threshold": 0.8}, "veto": {"threshold": 0.3},
}  # fmt: skip


@pytest.mark.parametrize(("rule", "level"), PAIRS)
def test_an_inverted_ratio_would_show_in_every_rule(rule, level, monkeypatch, rng):
    batch = random_batch(rng, rows=8, scale=2.0)
    batch = batch.replaced(reward=torch.where(batch.reward == 0, 1.0, batch.reward))
    given = {**runnable(rule), **ACTING.get(rule, {})}
    before = weigh(rule, batch, granularity=level, **given)
    original = granularity.log_ratios
    plant(monkeypatch, original, lambda *a, **k: -original(*a, **k))
    after = weigh(rule, batch, granularity=level, **given)
    assert not torch.equal(before.raw, after.raw)
    # no weight depends on the ratio's direction here: `none` on no ratio, k2 on its square
    assert torch.equal(before.value, after.value) == (rule in ("none", "k2_token", "k2_sequence"))


@pytest.mark.parametrize(
    ("original", "replacement", "rules"),
    [
        (truncate.truncate, lambda lr, cap: lr.exp(),
         ["tis", "seq_tis", "spire", "band", "cispo", "decoupled_ppo", "dppo_tv", "dppo_kl"]),
        (truncate.clamp, lambda lr, low, high: lr.exp(), ["band", "cispo"]),
        (mask.mask_band, lambda lr, low, high: torch.ones_like(lr, dtype=torch.bool),
         ["mis", "icepop", "seq_mis", "geo_mask", "k1_token", "k1_sequence"]),
        (clip.clip_gate, lambda lr, a, *eps: torch.ones_like(lr, dtype=torch.bool),
         ["ppo_clip", "dual_clip", "gspo", "decoupled_ppo"]),
        (confidence.confidence_log_cap, lambda logp, *limits: torch.zeros_like(logp), ["cis"]),
        (binary_divergence.binary_kl, lambda a, b: torch.full_like(a, math.inf), ["kpop", "dppo_kl"]),
        (rejection.over_response, lambda x, mask, how="mean": torch.zeros_like(x[:, :1]).double(),
         ["k1_sequence", "k2_sequence", "k3_sequence", "opsm"]),
        (token_divergence.kl_k3, lambda lr: torch.zeros_like(lr), ["k3_token", "k3_sequence"]),
    ],
)  # fmt: skip
def test_a_planted_operator_reaches_its_rules(original, replacement, rules, monkeypatch, rng):
    batch = random_batch(rng, rows=30, scale=3.0)
    before = {rule: weigh(rule, batch, **runnable(rule)).value for rule in rules}
    plant(monkeypatch, original, replacement)
    for rule in rules:
        assert not torch.equal(before[rule], weigh(rule, batch, **runnable(rule)).value), rule


# ---------------------------------------------------------------------------------------------- what it refuses
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ice_pop", r"unknown weighting rule; found 'ice_pop' \(did you mean icepop\?\)"),
        ("TIS", r"did you mean .*tis"),
        ("qqq", r"known: .*band, cis, cispo, decoupled_ppo"),
        ("sequence", r"did you mean sequence_product"),
    ],
)
def test_unknown_rules(batch, rule, message):
    with pytest.raises(InputError, match=message):
        weigh(rule, batch)


def test_a_planned_rule_is_not_called_unknown(batch, monkeypatch):
    monkeypatch.setattr(registry, "PLANNED", ("soon",))
    with pytest.raises(InputError, match=r"not available yet; found 'soon' \(available: none, exact, tis, mis, icepop"):
        weigh("soon", batch)


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("tis", {"cup": 3.0}, r"rule `tis` has no such parameter; found `cup` \(its parameters: cap=2.0\)"),
        ("icepop", {"cap": 3.0}, r"its parameters: low=0.5, high=5.0"),
        ("prefix", {"cap": 3.0}, r"its parameters: none"),
        ("tis", {"cap": 0.0}, r"`cap` must be > 0; found 0.0"),
        ("tis", {"cap": -1}, r"`cap` must be > 0; found -1.0"),
        ("tis", {"cap": math.nan}, r"`cap` must be a number; found nan"),
        ("tis", {"cap": "3"}, r"`cap` must be a number; found '3'"),
        ("tis", {"cap": None}, r"`cap` must be a number; found None"),
        ("tis", {"cap": True}, r"`cap` must be a number; found True"),
        ("mis", {"cap": 0}, r"`cap` must be > 0"),
        ("seq_tis", {"cap": -2.0}, r"`cap` must be > 0"),
        ("seq_mis", {"low": 4.0}, r"`low` must not exceed `cap`; found low=4.0, cap=3.0"),
        ("icepop", {"low": 6.0}, r"`low` must not exceed `high`; found low=6.0, high=5.0"),
        ("icepop", {"low": -0.1}, r"`low` must be >= 0; found -0.1"),
        ("band", {"low": 2.0, "high": 1.0}, r"`low` must not exceed `high`"),
        ("band", {"high": math.nan}, r"`high` must be a number"),
        ("geo_mask", {"low": 1.1}, r"`low` must not exceed `high`"),
        ("gspo", {"eps_low": -1e-4}, r"`eps_low` must be >= 0"),
        ("cispo", {"eps_high": -1.0}, r"`eps_high` must be >= 0"),
        ("cispo", {"eps_low": math.nan}, r"`eps_low` must be a number"),
        ("ppo_clip", {"eps_high": -0.2}, r"`eps_high` must be >= 0"),
        ("dual_clip", {"dual": 1.0}, r"`dual` must be > 1; found 1.0"),
        ("decoupled_ppo", {"cap": 0.0}, r"`cap` must be > 0"),
        ("vtrace", {"lam": 1.5}, r"`lam` must lie in \[0, 1\]; found 1.5"),
        ("vtrace", {"rho_cap": 0.0}, r"`rho_cap` must be > 0"),
        ("vtrace", {"c_cap": math.nan}, r"`c_cap` must be a number"),
        ("exact", {"clamp": 1}, r"`clamp` of rule `exact` must be True or False; found 1"),
        ("cis", {"lam": -0.1}, r"`lam` must be >= 0; found -0.1"),
        ("cis", {"floor": 1.1}, r"`floor` must lie in \[0, 1\]; found 1.1"),
        ("cis", {"floor": -0.1}, r"`floor` must lie in \[0, 1\]"),
        ("cis", {"low": 1.1}, r"`low` must lie in \[0, 1\]; found 1.1"),
        ("cis", {"cap_form": "odd"}, r"`cap_form` is unknown; found 'odd' \(did you mean odds\?\)"),
        ("kpop", {"phi": -1.0}, r"`phi` must be >= 0; found -1.0"),
        ("kpop", {"phi": math.nan}, r"`phi` must be a number"),
        ("dppo_tv", {"eps_low": -0.2}, r"`eps_low` must be >= 0"),
        ("dppo_kl", {"eps_high": math.nan}, r"`eps_high` must be a number"),
        ("dppo_kl", {"cap": 0.0}, r"`cap` must be > 0"),
        ("k1_token", {"low": 6.0}, r"`low` must not exceed `high`; found low=6.0, high=5.0"),
        ("k2_token", {"threshold": 0.0}, r"`threshold` must be > 0"),
        ("k3_sequence", {"threshold": -1}, r"`threshold` must be > 0"),
        ("k1_sequence", {"aggregate": "median"}, r"`aggregate` is unknown; found 'median'"),
        ("k2_sequence", {"aggregate": "maximum"}, r"did you mean max"),
        ("k1_token", {"weight": "two"}, r"`weight` must be 'one' or 'ratio'; found 'two'"),
        ("veto", {"threshold": 1.5}, r"`threshold` must lie in \[0, 1\]; found 1.5"),
        ("opsm", {"delta": -1e-4}, r"`delta` must be >= 0"),
        ("spire", {"cap": "off"}, r"must be a number, a sequence, 'auto' or 'none'; found 'off'"),
        ("spire", {"cap": -1.0}, r"`cap` must be > 0"),
        ("spire", {"cap": [1.0]}, r"`cap` needs one value per segment; found 1 for \d+ segments"),
        ("spire", {"cap": [1.0, -2.0]}, r"`cap\[1\]` must be > 0; found -2.0"),
    ],
)
def test_bad_parameters(batch, rule, params, message):
    with pytest.raises(InputError, match=message):
        weigh(rule, batch, **params)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.generic])
def test_a_rule_with_its_own_granularity_keeps_it(batch, rule):
    own = RULES[rule].granularity
    assert weigh(rule, batch, granularity=own, **runnable(rule)).granularity == own
    other = "token" if own != "token" else "prefix"
    with pytest.raises(InputError, match=rf"rule `{rule}` is defined on granularity `{own}` only; found '{other}'"):
        weigh(rule, batch, granularity=other, **runnable(rule))


def test_an_unknown_granularity(batch):
    with pytest.raises(InputError, match=r"`granularity` is unknown; found 'tokens' \(did you mean token"):
        weigh("tis", batch, granularity="tokens")


def test_a_missing_field_is_named(batch):
    with pytest.raises(MissingField, match=r"rule `decoupled_ppo` needs `logp_proximal`"):
        weigh("decoupled_ppo", batch.replaced(logp_proximal=None))


@pytest.mark.parametrize("rule", ["tis", "ppo_clip"])
def test_an_advantage_cannot_broadcast(batch, rule):
    rows, horizon = batch.mask.shape
    for wrong in [(rows, 1), (1, rows), (horizon,), (1,), (), (rows, horizon, 1), (rows + 1,)]:
        with pytest.raises(InputError, match=rf"`advantage` must have shape \({rows},\) or \({rows}, {horizon}\)"):
            weigh(rule, batch, torch.ones(wrong))


def test_advantages_per_response_and_per_token(batch):
    spread = batch.reward[:, None].expand(batch.mask.shape)
    by_default, by_row, by_token = (weigh("ppo_clip", batch, a) for a in (None, batch.reward, spread))
    assert torch.equal(by_default.objective, by_row.objective)
    assert torch.equal(by_default.objective, by_token.objective)
    assert not torch.equal(by_default.gate, weigh("ppo_clip", batch, -batch.reward).gate)
    broken = spread.clone()
    broken[1, 2] = math.nan
    with pytest.raises(InputError, match=r"`advantage` must be finite; found 1 non-finite, first at \(1, 2\)"):
        weigh("ppo_clip", batch, broken)
