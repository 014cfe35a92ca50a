"""What the noise laws draw has the law they state: inverted exactly where one number makes one draw, else by a gate."""

import math

import pytest
import torch
from scipy import stats

from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import moe_noise
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.reported import FLIP_BINS
from testbed.policies.noise.scale_mixture import ScaleMixture
from testbed.policies.noise.streams import NoiseStreams
from testbed.policies.noise.student import StudentT
from testbed.stats.gates import LawGate, MeanGate

EDGES = [0.02, 0.1, 0.3, 0.6, 1.0]  # of |delta|, nats


def cells_of(law):
    """Law of sign and size of one perturbation on 12 cells."""
    above = torch.tensor([1.0, *map(law.tail, EDGES), 0.0], dtype=torch.float64)
    size = above[:-1] - above[1:]
    return torch.cat([size, size]) / 2


def cell_numbers(delta):
    return torch.bucketize(delta.abs(), torch.tensor(EDGES, dtype=torch.float64)) + 6 * (delta < 0)


def rows(seed, n):
    return NoiseStreams.of(SeedTree(seed), [(i,) for i in range(n)])


@pytest.mark.parametrize("law", [Laplace(0.25), StudentT(0.25, 4.0), StudentT(0.25, 1.5)])
def test_independent_draws_invert_the_stated_law(law):
    u = rows("inverse", 1).uniform(200)[0]
    delta = law.draw(rows("inverse", 1), torch.zeros(1, 200, dtype=torch.float64))[0]
    assert torch.equal(delta > 0, u > 0.5)
    expected = (2 * torch.minimum(u, 1 - u)).tolist()
    assert [law.tail(x) for x in delta.abs().tolist()] == pytest.approx(expected, rel=1e-9)


def test_scales_invert_the_stated_law():
    law = ScaleMixture((0.1, 0.5, 0.2), (0.2, 0.5, 0.3), df=5.0)
    streams = rows("scales", 100)
    u, w = (streams.child(name).uniform(1)[:, 0] for name in ("level", "chi2"))
    level = law.levels(streams)
    assert torch.equal(level, (u > 0.2).long() + (u > 0.7).long())
    chi2 = 3.0 * (torch.tensor(law.sds, dtype=torch.float64)[level] / law.scales(streams)).square()
    assert stats.chi2.cdf(chi2.numpy(), 5.0).tolist() == pytest.approx(w.tolist(), rel=1e-9)


@pytest.mark.stat
def test_expert_noise_has_the_stated_law(seed):
    law = moe_noise()
    gate = LawGate(name="moe draws", probs=cells_of(law), alternative=cells_of(Gaussian(law.sd)), power=0.99)
    n = gate.sample_size()
    delta = law.draw(rows(seed, n), torch.zeros(n, 1, dtype=torch.float64))[:, 0]
    assert gate.decide(cell_numbers(delta)), gate.decide(cell_numbers(delta)).reason


@pytest.mark.stat
def test_flips_are_drawn_with_the_reported_shares(seed):
    law = moe_noise()
    shares = torch.tensor(law.shares, dtype=torch.float64)
    binned, shifted = (
        torch.stack([x[low : high + 1].sum() for low, high in FLIP_BINS]) for x in (shares, shares.roll(1))
    )
    gate = LawGate(name="flips", probs=binned, alternative=shifted, power=0.99)
    flips = law.flips(rows(seed, gate.sample_size()))
    bins = torch.bucketize(flips, torch.tensor([high for _, high in FLIP_BINS]))
    assert gate.decide(bins), gate.decide(bins).reason


@pytest.mark.stat
def test_logits_of_a_prefix_agree_in_sign_as_their_correlation_says(seed):
    law = ScaleMixture((0.1, 0.5), (0.6, 0.4), df=4.0, correlation=0.5)
    agree = 0.5 + math.asin(0.5) / math.pi
    gate = MeanGate(
        name="signs", mean=agree, variance=agree * (1 - agree), low=0.0, high=1.0, effect=agree - 0.5, power=0.99
    )
    n = gate.sample_size()
    delta = law.draw(rows(seed, n), torch.zeros(n, 2, dtype=torch.float64))
    outcome = gate.decide((delta.prod(-1) > 0).double())
    assert outcome, outcome.reason
