"""Noise laws: moments, tails and generating functions against quadrature; covariance, rounding and routing exactly."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import flip_law, moe_noise, reported_flip_shares
from testbed.policies.noise.common_mode import CommonMode
from testbed.policies.noise.confidence import ConfidenceScaled
from testbed.policies.noise.flips import RoutingFlips, flip_shares
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.reported import FLIP_BINS
from testbed.policies.noise.rounding import Rounding
from testbed.policies.noise.scale_mixture import ScaleMixture
from testbed.policies.noise.streams import NoiseStreams
from testbed.policies.noise.student import StudentT

GAUSS, LAPLACE = Gaussian(0.7), Laplace(0.4)
MIXTURE = ScaleMixture((0.2, 0.9), (0.7, 0.3), correlation=0.35)
HEAVY = ScaleMixture((0.2, 0.9), (0.7, 0.3), df=4.5, correlation=0.35)
FLIPS = RoutingFlips((0.3, 0.5, 0.2), 0.04, 0.03, 0.01, 3.5, 0.4)
DENSITIES = {
    GAUSS: lambda x: stats.norm.pdf(x, scale=0.7),
    LAPLACE: lambda x: stats.laplace.pdf(x, scale=0.4),
    MIXTURE: lambda x: 0.7 * stats.norm.pdf(x, scale=0.2) + 0.3 * stats.norm.pdf(x, scale=0.9),
}
NORMALS = {"gauss": GAUSS, "common": CommonMode(GAUSS, 0.35), "mixture": MIXTURE}


def streams(rows=1):
    return NoiseStreams.of(SeedTree("laws"), [(i,) for i in range(rows)])


@pytest.mark.parametrize("law", DENSITIES)
@pytest.mark.parametrize("t", [-1.0, 0.0, 0.5, 2.0])
def test_generating_function_is_that_of_the_density(law, t):
    value = integrate.quad(
        lambda x: 2 * math.cosh(t * x) * DENSITIES[law](x), 0, 120, epsabs=0, epsrel=1e-12, limit=200
    )
    assert law.mgf(t) == pytest.approx(value[0], rel=1e-10)


def test_generating_function_of_a_common_mode_is_that_of_the_sum():
    law = CommonMode(LAPLACE, 0.36)

    def both(x, y):
        return math.exp(0.6 * x + 0.8 * y) * stats.laplace.pdf(x, scale=0.4) * stats.laplace.pdf(y, scale=0.4)

    pieces = [(a, b) for a in ((-20, 0), (0, 20)) for b in ((-20, 0), (0, 20))]
    value = sum(integrate.dblquad(both, *b, *a, epsabs=1e-9)[0] for a, b in pieces)
    assert law.mgf(1.0) == pytest.approx(value, rel=1e-6)
    assert law.mgf(1.0) == pytest.approx(1 / (1 - 0.16 * 0.36) / (1 - 0.16 * 0.64), rel=1e-14)


def test_where_exponential_moments_end():
    assert math.isinf(Laplace(1.0).mgf(1.0)) and Laplace(0.999).mgf(1.0) == pytest.approx(1 / (1 - 0.999**2))
    assert Laplace(0.5).mgf(-1.9) == pytest.approx(1 / (1 - 0.95**2)) and math.isinf(Laplace(0.5).mgf(-2.0))
    for heavy in (StudentT(0.01, 30.0), HEAVY, FLIPS):
        assert heavy.mgf(0.0) == 1 and math.isinf(heavy.mgf(1e-3)) and math.isinf(heavy.pair_moment())
    assert CommonMode(Laplace(1.1), 0.5).pair_moment() == pytest.approx(1 / (1 - 0.605) ** 2)
    assert math.isinf(Gaussian(50.0).mgf(1.0))


def mean_d2_of_two(law, probs):
    """E d2 at V = 2 by Gauss-Hermite over the difference of the two perturbations."""
    x, w = np.polynomial.hermite_e.hermegauss(60)
    parts = law.shares if isinstance(law, ScaleMixture) else (1.0,)
    sds = law.sds if isinstance(law, ScaleMixture) else (law.sd,)
    r = getattr(law, "correlation", 0.0)
    total = 0.0
    for share, sd in zip(parts, sds, strict=True):
        delta = torch.from_numpy(math.sqrt(2 * (1 - r)) * sd * x)
        q = torch.softmax(torch.stack([probs[0].log() + delta, probs[1].log().expand_as(delta)], -1), -1)
        total += share * float(torch.from_numpy(w / w.sum()) @ (probs.square() / q).sum(-1))
    return total


@pytest.mark.parametrize("law", NORMALS.values(), ids=NORMALS)
def test_second_moment_averaged_over_the_noise(law):
    probs = torch.tensor([0.85, 0.15], dtype=torch.float64)
    assert law.expected_second_moment(probs) == pytest.approx(mean_d2_of_two(law, probs), rel=1e-10)


def test_second_moment_under_laplace_noise_by_quadrature():
    p = (0.85, 0.15)

    def d2(a, b):
        z = p[0] * math.exp(a) + p[1] * math.exp(b)
        density = stats.laplace.pdf(a, scale=0.4) * stats.laplace.pdf(b, scale=0.4)
        return density * z * (p[0] * math.exp(-a) + p[1] * math.exp(-b))

    pieces = [(a, b) for a in ((-20, 0), (0, 20)) for b in ((-20, 0), (0, 20))]
    value = sum(integrate.dblquad(d2, *b, *a, epsabs=1e-9)[0] for a, b in pieces)
    assert LAPLACE.expected_second_moment(torch.tensor(p, dtype=torch.float64)) == pytest.approx(value, rel=1e-6)
    assert math.isinf(Laplace(1.0).expected_second_moment(torch.tensor([0.5, 0.5])))
    assert Laplace(1.0).expected_second_moment(torch.tensor([1.0, 0.0])) == 1.0


ALL = [GAUSS, LAPLACE, StudentT(0.3, 5.0), CommonMode(LAPLACE, 0.36), MIXTURE, HEAVY, FLIPS]


@pytest.mark.parametrize("law", ALL, ids=lambda law: type(law).__name__)
def test_tail_quantile_and_sd_agree(law):
    for level in (0.1, 0.5, 0.9, 0.99, 0.9999):
        assert 1 - law.tail(law.quantile(level)) == pytest.approx(level, rel=1e-8)
    assert law.tail(-1.0) == 1.0 and law.quantile(0.0) == pytest.approx(0.0, abs=1e-9)
    if not isinstance(law, CommonMode):  # E delta^2 = integral of 2 x P(|delta| > x), with x = e^u
        grid, step = np.linspace(-25, 35, 6001, retstep=True)
        square = sum(2 * math.exp(2 * u) * law.tail(math.exp(u)) for u in grid) * step
        assert law.sd**2 == pytest.approx(square, rel=1e-6)
    with pytest.raises(InputError, match="level"):
        law.quantile(1.0)


def test_a_common_mode_of_normals_is_normal_with_the_same_sd():
    law = CommonMode(GAUSS, 0.3)
    for x in (0.1, 0.7, 2.5):
        assert law.tail(x) == pytest.approx(GAUSS.tail(x), rel=1e-7)
    assert CommonMode(GAUSS, 0.0).tail(0.4) == GAUSS.tail(0.4) == CommonMode(GAUSS, 1.0).tail(0.4)


def test_student_levels_have_the_stated_sd_and_law():
    law = ScaleMixture((0.5,), (1.0,), df=4.0)
    for x in (0.2, 1.0, 4.0):
        assert law.tail(x) == pytest.approx(2 * stats.t.sf(x / (0.5 / math.sqrt(2)), 4.0), rel=1e-12)
    assert StudentT(0.5 / math.sqrt(2), 4.0).sd == pytest.approx(0.5) == law.sd
    assert math.isinf(StudentT(0.5, 2.0).sd) and StudentT(0.0, 2.0).sd == 0.0


def linear_map(law, size, monkeypatch):
    """Matrix that takes the normals of a row, its own ones and the common one, to its perturbations."""
    columns = []
    for k in range(size + 1):

        def basis(self, n, k=k):
            row = torch.zeros(1, size + 1, dtype=torch.float64)
            row[0, k] = 1.0
            return row[:, :n] if n == size else row[:, size:]

        monkeypatch.setattr(NoiseStreams, "normal", basis)
        columns.append(law.draw(streams(), torch.zeros(1, size, dtype=torch.float64))[0])
    return torch.stack(columns, -1)


@pytest.mark.parametrize("law", [CommonMode(GAUSS, 0.35), ScaleMixture((0.7,), (1.0,), correlation=0.35)])
def test_equicorrelation_is_exactly_the_covariance(law, monkeypatch):
    a = linear_map(law, 4, monkeypatch)
    expected = 0.49 * (0.35 + 0.65 * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(a @ a.T, expected, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(law.covariance(4), expected, rtol=1e-14, atol=0)


def test_a_common_part_moves_no_law():
    log_p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    apart, joint = (ScaleMixture((s,), (1.0,), 4.0, r) for s, r in ((0.6, 0.0), (1.0, 0.64)))
    laws = [torch.log_softmax(log_p + law.draw(streams(), log_p), -1) for law in (apart, joint)]
    torch.testing.assert_close(laws[0], laws[1], rtol=1e-13, atol=1e-14)
    assert torch.equal(CommonMode(GAUSS, 0.0).draw(streams(), log_p), GAUSS.draw(streams(), log_p))


@pytest.mark.parametrize(("form", "offset"), [("bfloat16", 0.0), ("bfloat16", 24.0), ("float16", 24.0)])
def test_rounding_twice_is_rounding_once(form, offset, generator):
    law = Rounding(form, offset)
    logits = torch.log_softmax(4 * torch.randn(5, 40, generator=generator, dtype=torch.float64), -1)
    delta = law.perturbation(logits)
    assert delta.abs().max() > 1e-4
    torch.testing.assert_close(law.perturbation(logits + delta), torch.zeros_like(delta), rtol=0, atol=1e-14)
    assert torch.equal(law.draw(streams(5), logits), delta)


def test_rounding_steps_and_ties():
    step = torch.tensor([[16.0625, 16.1875, -float("inf"), 16.13]], dtype=torch.float64)
    added = Rounding("bfloat16").perturbation(step)  # steps of 1/8 at 16..32; ties to the even neighbor
    torch.testing.assert_close(
        added, torch.tensor([[-0.0625, 0.0625, 0.0, -0.005]], dtype=torch.float64), rtol=0, atol=1e-12
    )
    with pytest.raises(InputError, match="range of float16"):
        Rounding("float16").perturbation(torch.tensor([[-1e5]], dtype=torch.float64))


def test_confident_prefixes_are_stretched():
    law = ConfidenceScaled(GAUSS, 0.5, floor=0.01, factor=2.0)
    log_p = torch.tensor([[0.96, 0.04], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64).log()
    torch.testing.assert_close(
        law.scale(log_p), torch.tensor([10.0, 2 * 2**0.5, 20.0], dtype=torch.float64), rtol=1e-12, atol=0
    )
    ratio = law.draw(streams(3), log_p) / GAUSS.draw(streams(3), log_p)
    torch.testing.assert_close(ratio, law.scale(log_p)[:, None].expand(3, 2), rtol=1e-12, atol=0)


def test_flips_reproduce_the_shares_and_are_a_law():
    law = flip_law()
    assert len(law) == 25 and min(law) > 0 and math.fsum(law) == pytest.approx(1, abs=1e-12)
    binned = [math.fsum(law[low : high + 1]) for low, high in FLIP_BINS]
    assert binned == pytest.approx([0.080, 0.156, 0.331, 0.282, 0.151], abs=1e-12)
    assert binned == pytest.approx(reported_flip_shares(), abs=1e-12)
    assert law[7] > law[8] > law[16] and law[2] / law[3] == pytest.approx(
        stats.betabinom.pmf(2, 24, 2.493499, 14.028011) / stats.betabinom.pmf(3, 24, 2.493499, 14.028011), rel=1e-9
    )


def test_noise_grows_with_the_flips():
    moe = moe_noise()
    sds = [moe.given(n, n).sd for n in range(25)]
    assert sds == sorted(sds) and sds[0] ** 2 == pytest.approx(moe.base)
    assert FLIPS.given(2, 2).sd ** 2 == pytest.approx(0.04 + 0.06 + 0.04)
    assert FLIPS.sd**2 == pytest.approx(0.3 * 0.04 + 0.5 * 0.08 + 0.2 * 0.14)
    assert torch.equal(FLIPS.flips(streams(50)), FLIPS.mixture.levels(streams(50)))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Gaussian(-0.1), "sigma"),
        (lambda: Laplace(math.nan), "scale"),
        (lambda: StudentT(1.0, 0.0), "df"),
        (lambda: CommonMode(GAUSS, 1.1), "correlation"),
        (lambda: ScaleMixture((0.1,), (0.9,)), "shares"),
        (lambda: ScaleMixture((0.1, 0.2), (1.0,)), "one entry per level"),
        (lambda: ScaleMixture((0.1,), (1.0,), df=2.0), "df"),
        (lambda: ScaleMixture((-0.1,), (1.0,)), "sds"),
        (lambda: MIXTURE.given(5, 6), "levels"),
        (lambda: RoutingFlips((1.0,), -0.1, 0.0, 0.0, 4.0, 0.0), "base"),
        (lambda: ConfidenceScaled(GAUSS, math.inf), "exponent"),
        (lambda: ConfidenceScaled(GAUSS, 1.0, floor=0.0), "floor"),
        (lambda: Rounding("float8"), "format"),
        (lambda: Rounding(offset=math.inf), "offset"),
        (lambda: flip_shares(3, 1.0, 1.0, [(0, 1), (3, 3)], [0.5, 0.5]), "consecutive"),
        (lambda: flip_shares(3, 1.0, 1.0, [(0, 1), (2, 3)], [0.5, 0.6]), "total 1"),
    ],
)
def test_parameters_out_of_range_are_refused(make, name):
    with pytest.raises(InputError, match=name):
        make()
