"""Every rule agrees with an independent transcription of its formula, at 50 digits.

|log ratio| goes up to 700 and p up to 1 - 1e-12; every granularity a rule takes, its published defaults and one other choice
of parameters that makes each of its branches bind.
"""

import math

import pytest

from testbed.weighting.rules import RULES, weigh
from tests.weighting.grid import WORLDS
from tests.weighting.transcription import disagreements, load_formulas
from tests.weighting.worlds import PAIRS

# one set of parameters, or several, beside the published ones
OTHER = {
    "exact": {"clamp": True},
    "tis": {"cap": 1.3},
    "mis": {"cap": 0.9},
    "icepop": {"low": 0.8, "high": 1.1},
    "band": {"low": 0.0, "high": 1.5},
    "cispo": {"eps_low": 0.1, "eps_high": 0.3},
    "seq_tis": {"cap": 0.7},
    "seq_mis": {"low": 0.4, "cap": 2.0},
    "geo_mask": {"low": 0.6, "high": 1.7},
    "gspo": {"eps_low": 0.3, "eps_high": 0.1},
    "ppo_clip": {"eps_low": 1.0, "eps_high": 0.05},
    "dual_clip": {"dual": 1.5},
    "decoupled_ppo": {"cap": 1.1, "eps_high": 0.5},
    "vtrace": {"rho_cap": 1.7, "c_cap": 2.5, "lam": 0.9},
    "cis": [
        {"cap_form": "linear"},
        {"cap_form": "loglinear", "floor": 0.1},
        {"lam": 0.0},
        {"floor": 0.0},
        {"lam": 30.0},
        {"floor": 0.0, "cap_form": "loglinear", "lam": 900.0},
        {"floor": 0.1, "lam": 0.45},
        {"low": 0.5},
        {"low": 1.0, "lam": 0.0},
        {"low": 1e-6, "floor": 0.0},
    ],
    "kpop": [{"phi": 0.013}, {"phi": 1e-5}],
    "dppo_tv": [{"eps_low": 1.0, "eps_high": 0.013, "cap": 1.1}, {"eps_low": 1e-3, "eps_high": 0.5, "cap": math.inf}],
    "dppo_kl": [{"eps_low": 1e-5, "eps_high": 0.3, "cap": 1.1}, {"eps_low": 0.3, "eps_high": 1e-5}],
    "k1_token": [{"low": 0.9, "high": 1.3, "weight": "ratio"}, {"low": 0.0, "high": 0.99}],
    "k2_token": [{"threshold": 1e-3, "weight": "ratio"}, {"threshold": 2000.0}],
    "k3_token": [{"threshold": 1e-3, "weight": "ratio"}, {"threshold": 2000.0}],
    "k1_sequence": [{"low": 0.9, "high": 1.2, "aggregate": how, "weight": "ratio"} for how in ("mean", "sum", "max")],
    "k2_sequence": [{"threshold": 0.03, "aggregate": how, "weight": "ratio"} for how in ("mean", "sum", "max")],
    "k3_sequence": [{"threshold": 0.03, "aggregate": how, "weight": "ratio"} for how in ("mean", "sum", "max")],
    "veto": [{"threshold": 0.9, "weight": "ratio"}, {"threshold": 1e-30}],
    "opsm": [{"delta": 0.03, "weight": "ratio"}, {"delta": 0.0}],
    "sis": [{"top_k": 1}, {"top_k": 2, "completion": True}, {"bound": 1.9}, {"bound": 1.0, "completion": True}],
    "obrs": [{"lam": 2.3, "cap": math.inf}, {"lam": 0.4, "cap": 0.9}, {"share": 0.6, "lam": 1.3, "cap": 0.7}],
    "ais": [{"alpha": 0.3}, {"alpha": 1.0}, {"alpha": 0.0}, {"kl_scale": 3.0}],
    "m2po": [{"budget": 3.0}, {"budget": 1e9, "eps_low": 1.0}, {"tau": 0.013, "eps_low": 0.0, "eps_high": 0.0}],
    "topr": {"cap": 0.3},
    "vespo": [{"k_pos": 0.5, "lam_pos": 0.0, "k_neg": 1.0, "lam_neg": 0.01}],
    "mu_grpo": [{"trigger_low": 0.7, "trigger_high": 1.3, "eps_low": 1.0, "eps_high": 0.05}],
}
GATED_HOMES = ("mask", "clip", "rejection", "probability_change")
PUBLISHED = {"spire": {"cap": 2.0}}  # its automatic cap is a root over the batch, tested apart


@pytest.fixture(scope="module")
def worlds():
    return {name: build() for name, build in WORLDS.items()}


def parameter_sets(rule, n_segments=5):
    """Return the parameters a rule is compared under; lists of caps have one per segment."""
    sets = [PUBLISHED.get(rule, {})]
    if rule == "spire":
        sets += [{"cap": "none"}, {"cap": [0.5 + 0.3 * k for k in range(n_segments)]}]
    more = OTHER.get(rule, [])
    return sets + (more if isinstance(more, list) else [more])


def test_every_rule_has_a_transcription():
    assert set(load_formulas()) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_defaults_are_the_published_ones(rule):
    assert dict(RULES[rule].parameters) == load_formulas()[rule].defaults


@pytest.mark.parametrize("world", ["scattered", "mild"])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_responses(rule, granularity, world, worlds):
    for given in parameter_sets(rule):
        assert disagreements(rule, worlds[world], granularity, **given) == [], given


@pytest.mark.parametrize("rule", RULES)
def test_single_tokens(rule, worlds):
    batch = worlds["tokens"]
    if not RULES[rule].needs_advantage:
        batch = batch.select(batch.reward > 0)  # every pair once
    for given in parameter_sets(rule):
        assert disagreements(rule, batch, **given) == [], given


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.home in GATED_HOMES])
def test_every_gate_opens_and_closes(rule, worlds):
    """On each side of every gate the grid has tokens: agreement is not agreement on an empty set."""
    for given in parameter_sets(rule):
        seen = [weigh(rule, batch, **given).gate[batch.mask] for batch in worlds.values()]
        assert any(gate.any() for gate in seen) and any((~gate).any() for gate in seen), given
