"""Instances beyond the tabular worlds: recorded laws and laws with noise on their logits."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies import TabularPolicy, logit_noise
from testbed.policies.noise.streams import NoiseStreams
from testbed.sample_data import BEHAVIORS, next_token_laws
from testbed.stats import second_moment
from theory.noisy_laws import NoisyLaw, noisy
from theory.planting import planted
from theory.real_laws import is_real, real_law, real_laws


def test_a_recorded_law_is_a_one_token_world():
    laws = next_token_laws()
    found = real_law(2, "v1_int8_dynamic")
    log_ratio = laws.logp_target[2] - laws.logp_behavior["v1_int8_dynamic"][2]
    expected = second_moment(log_ratio.exp(), probs=laws.logp_behavior["v1_int8_dynamic"][2].exp())
    weights = (found.batch.logp_target - found.batch.logp_behavior)[:, 0].exp()
    assert float(found.law.expect(weights**2)) == pytest.approx(float(expected), rel=1e-12)
    assert float(found.law.expect(weights * found.batch.reward)) == pytest.approx(float(laws.logp_target[2, 0].exp()))
    assert is_real(found) and all(map(is_real, real_laws()))


def test_worlds_are_built_anew_so_that_nothing_computed_under_a_planted_bug_survives():
    assert real_law(0, "v1_f32") is not real_law(0, "v1_f32")


@pytest.mark.parametrize(("position", "behavior"), [(12, "v1_f32"), (-1, "v1_f32"), (0, "v2_f32")])
def test_what_was_not_recorded_is_refused(position, behavior):
    with pytest.raises(InputError, match=f"recorded are positions 0 to 11 of {BEHAVIORS[0]}"):
        real_law(position, behavior)


def test_quadrature_nodes_are_independent_standard_normals():
    z, weight = NoisyLaw(name="normal", probs=(0.2, 0.3, 0.5), sigma=1.0).noise()
    assert float(weight.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(weight @ z, torch.zeros(3).double(), rtol=0, atol=1e-13)
    torch.testing.assert_close(z.T @ (weight[:, None] * z), torch.eye(3).double(), rtol=0, atol=1e-12)
    assert float(weight @ z.sum(1).exp()) == pytest.approx(float(torch.tensor(1.5).exp()), rel=1e-6)
    assert float(weight @ (2 * z[:, 0]).exp()) == pytest.approx(float(torch.tensor(2.0).double().exp()), rel=1e-9)


def test_the_noise_is_that_of_the_librarys_policy_family(generator):
    pi = TabularPolicy.random(3, 2, 1)
    z = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    with planted(NoiseStreams, "normal", lambda right: lambda streams, size: z):
        drawn = logit_noise(pi, 0.7, seed=2).table
    torch.testing.assert_close(drawn, noisy(pi.table, 0.7, z), rtol=1e-12, atol=1e-14)
    assert (drawn - pi.table).abs().max() > 0.01
