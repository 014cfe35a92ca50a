"""Every rule at every granularity against its formula at 50 digits, on ragged batches with ratios up to e^700."""

import math

import mpmath
import pytest
import torch

from testbed.weighting.rules import RULES, weigh
from tests.weighting.reference import expected, rows_of
from tests.weighting.worlds import PAIRS, random_batch

LARGEST = mpmath.mpf(torch.finfo(torch.float64).max)
OTHER = {
    "tis": {"cap": 1.3},
    "mis": {"cap": 0.9},
    "icepop": {"low": 0.8, "high": 1.1},
    "band": {"low": 0.0, "high": 1.5},
    "cispo": {"eps_low": 0.1, "eps_high": 0.3},
    "seq_mis": {"low": 0.4, "cap": 2.0},
    "geo_mask": {"low": 0.6, "high": 1.7},
    "gspo": {"eps_low": 0.3, "eps_high": 0.1},
    "ppo_clip": {"eps_low": 1.0, "eps_high": 0.05},
    "dual_clip": {"dual": 1.5},
    "decoupled_ppo": {"cap": 1.1, "eps_high": 0.5},
    "vtrace": {"rho_cap": 1.7, "c_cap": 2.5, "lam": 0.9},
}


def close(got, want):
    if abs(want) > LARGEST or (abs(want) > LARGEST / 4 and math.isinf(got)):  # a ratio may overflow before its product
        return got == (math.inf if want > 0 else -math.inf)
    return abs(mpmath.mpf(got) - want) <= mpmath.mpf("1e-10") * abs(want) + mpmath.mpf("1e-300")


def parameter_sets(rule, segments):
    if rule == "spire":
        return [{"cap": 2.0}, {"cap": "none"}, {"cap": [0.5 + 0.3 * k for k in range(segments)]}]
    return [{}, *([OTHER[rule]] if rule in OTHER else [])]


@pytest.mark.parametrize("scale", [0.02, 1.0, 700.0])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_rule_equals_its_formula(rule, granularity, scale, rng):
    batch = random_batch(rng, scale=scale)
    for given in parameter_sets(rule, batch.n_segments):
        w = weigh(rule, batch, granularity=granularity, **given)
        params = {**RULES[rule].parameters, **given}
        seen = 0
        for b, where, row in rows_of(batch, batch.reward):
            for i, t in enumerate(where):
                value, kept, objective = expected(rule, granularity, row, i, params)
                assert bool(w.gate[b, t]) == kept, (b, t, given)
                assert close(w.value[b, t].item(), value), (b, t, given, w.value[b, t], value)
                assert close(w.raw[b, t].item(), row.at(w.granularity, i)), (b, t)
                assert (objective is None) == (w.objective is None)
                if objective is not None:
                    assert close(w.objective[b, t].item(), objective), (b, t, given, w.objective[b, t], objective)
                seen += 1
        assert seen == batch.n_tokens >= 6
        off = ~batch.mask
        assert not w.value[off].any()
        assert not w.gate[off].any()
        assert not w.acted[off].any()
        assert w.objective is None or not w.objective[off].any()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_float32_agrees_with_float64(rule, granularity, rng):
    """Single precision moves a weight by rounding only: the inputs of both are the same numbers."""
    single = random_batch(rng, scale=1.0, dtype=torch.float32)
    double = single.replaced(
        **{name: getattr(single, name).double() for name in ("logp_target", "logp_behavior", "logp_proximal")}
    )
    given = {"cap": 2.0} if rule == "spire" else {}
    a, b = (weigh(rule, x, granularity=granularity, **given) for x in (single, double))
    assert a.value.dtype == torch.float32
    torch.testing.assert_close(a.value.double(), b.value, rtol=1e-5, atol=1e-12)
    assert torch.equal(a.gate, b.gate)
