"""Every rule at every granularity against its formula at 50 digits, on random ragged batches; single precision beside it."""

import pytest
import torch

from testbed.weighting.rules import weigh
from tests.weighting.test_transcriptions_all import parameter_sets
from tests.weighting.transcription import disagreements
from tests.weighting.worlds import PAIRS, random_batch, runnable


@pytest.mark.parametrize("scale", [0.02, 1.0, 700.0])
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_rule_equals_its_formula(rule, granularity, scale, rng):
    batch = random_batch(rng, scale=scale)
    assert batch.n_tokens >= 6
    for given in parameter_sets(rule, batch.n_segments):
        assert disagreements(rule, batch, granularity, **given) == [], given


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_float32_agrees_with_float64(rule, granularity, rng):
    """Single precision moves a weight by rounding only: the inputs of both are the same numbers."""
    single = random_batch(rng, scale=1.0, dtype=torch.float32)
    double = single.replaced(
        **{name: getattr(single, name).double() for name in ("logp_target", "logp_behavior", "logp_proximal")}
    )
    a, b = (weigh(rule, x, granularity=granularity, **runnable(rule)) for x in (single, double))
    assert a.value.dtype == torch.float32
    torch.testing.assert_close(a.value.double(), b.value, rtol=1e-5, atol=1e-12)
    assert torch.equal(a.gate, b.gate)
