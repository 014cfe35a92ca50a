"""The calibrated noise: its constants follow from the reported numbers, its fit is as near as stated, its misfits are named."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from testbed.core.errors import InputError
from testbed.policies.noise import calibration, fitting
from testbed.policies.noise.calibration import confident_moe_noise, dense_noise, moe_noise
from testbed.policies.noise.displacement import GridLaw, displacement_law, pooled
from testbed.policies.noise.fit_report import (
    FITTED,
    PREDICTED,
    SOLVED,
    concentration,
    confidence_rows,
    correlation_readings,
    displacement_rows,
    flip_rows,
    logit_rows,
)
from testbed.policies.noise.reported import CONFIDENCE_NAMES, Printed, kept_cells, reported
from testbed.policies.noise.scale_mixture import ScaleMixture

TABLES = Path(__file__).parents[2] / "paper_repro" / "reported"


def bare(label):
    return label.replace(" ", "")


def test_the_targets_are_the_reported_tables():
    for table in (3, 4, 5, 6, 7):
        with (TABLES / f"cis_table{table:02d}.csv").open() as file:
            cells = {(bare(line["row"]), bare(line["column"])): line for line in csv.DictReader(file)}
        kept = [(row, column) for t, row, column in kept_cells() if t == table]
        assert kept
        for row, column in kept:
            line = cells[bare(row), bare(column)]
            percent = "%" if line["unit"] == "%" or "(%)" in row else ""
            assert reported(table, row, column).text == line["printed"].rstrip("%") + percent, (table, row, column)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("0.240", 0.2405, 0.2406),
        ("4.51%", 0.045149, 0.04516),
        ("6.43e-3", 0.006425, 0.006424),
        ("0.003%", 3.5e-5, 3.6e-5),
    ],
)
def test_rounding_to_what_is_printed(text, inside, outside):
    assert Printed(text).rounds_to(inside) and not Printed(text).rounds_to(outside)


def test_only_kept_numbers_are_given():
    with pytest.raises(InputError, match="Tables 3 to 7"):
        reported(6, "Finite fraction", "MoE")


def test_constants_follow_from_the_reported_numbers():
    a, b = fitting.fit_flips()
    assert (a, b) == pytest.approx((calibration.FLIP_A, calibration.FLIP_B), rel=1e-5)
    base, linear, quadratic, df = fitting.fit_moe(a, b)
    stored = (calibration.MOE_BASE, calibration.MOE_LINEAR, calibration.MOE_QUADRATIC, calibration.MOE_DF)
    assert (base, linear, quadratic, df) == pytest.approx(stored, rel=1e-4)
    calm, rough, rough_share, rare_share = fitting.fit_dense()
    stored = (
        calibration.DENSE_CALM,
        calibration.DENSE_ROUGH,
        calibration.DENSE_ROUGH_SHARE,
        calibration.DENSE_RARE_SHARE,
    )
    assert (calm, rough, rough_share, rare_share) == pytest.approx(stored, rel=1e-5)
    assert fitting.fit_runner_up(dense_noise()) == pytest.approx(calibration.RUNNER_UP, abs=1e-4)
    r = fitting.fit_correlation(moe_noise(0.0), calibration.RUNNER_UP)
    assert r == pytest.approx(calibration.MOE_CORRELATION, abs=1e-4)
    exponent, floor = fitting.fit_confidence(moe_noise(), calibration.RUNNER_UP)
    assert exponent == pytest.approx(calibration.CONFIDENCE_EXPONENT, rel=0.01)
    assert floor == pytest.approx(calibration.CONFIDENCE_FLOOR, rel=0.02)


def errors(rows, role):
    return {(row.table, row.where, row.quantity): row.relative_error for row in rows if row.role == role}


def test_what_is_solved_for_rounds_to_what_is_printed():
    solved = [row for row in logit_rows() + flip_rows() + displacement_rows() if row.role == SOLVED]
    assert len(solved) == 2 + 3 + 5 + 2
    assert [row for row in solved if not row.rounds] == []


def test_the_fit_of_one_logits_noise_is_near():
    fitted = errors(flip_rows(), FITTED)
    assert len(fitted) == 15
    assert max(abs(e) for key, e in fitted.items() if key[2] == "sd(delta)") < 0.031
    assert max(abs(e) for key, e in fitted.items() if key[2].startswith("Pr(|delta|>0.5)")) < 0.045
    assert max(abs(e) for key, e in fitted.items() if key[2].startswith("Pr(|delta|>1)")) < 0.085
    predicted = errors(logit_rows(), PREDICTED)
    assert len(predicted) == 5 and max(map(abs, predicted.values())) < 0.01


def test_what_follows_for_displacements_and_what_does_not():
    predicted = errors(displacement_rows(), PREDICTED)
    assert abs(predicted[6, "MoE", "q95(|epsilon|)"]) < 0.025
    assert abs(predicted[6, "MoE", "q99(|epsilon|)"]) < 0.06
    assert 0.15 < predicted[6, "Dense", "q95(|epsilon|)"] < 0.25  # a stated misfit
    alike, stretched = confidence_rows(stretched=False), confidence_rows(stretched=True)
    quantiles = [e for key, e in errors(stretched, FITTED).items()]
    assert len(quantiles) == 10 and max(map(abs, quantiles)) < 0.14
    assert max(abs(row.relative_error) for row in alike if row.quantity.startswith("q")) > 0.4
    mads = [row.made for row in stretched if row.quantity == "MAD(epsilon)"]
    assert all(row.relative_error < -0.15 for row in stretched if row.quantity == "MAD(epsilon)")  # a stated misfit
    assert mads == sorted(mads)


def test_reported_widths_are_flatter_than_any_mixture_of_centered_normals():
    normal = stats.norm.ppf(0.95) / stats.norm.ppf(0.75)
    for name in CONFIDENCE_NAMES:
        low, high, mad = (reported(7, name, what).value for what in ("q05(epsilon)", "q95(epsilon)", "MAD(epsilon)"))
        assert (high - low) / 2 / mad < normal - 0.05
    for law in (dense_noise(), moe_noise(), ScaleMixture((0.1, 0.2), (0.5, 0.5))):
        assert law.quantile(0.9) / law.quantile(0.5) >= normal


def test_the_puzzle_of_the_two_spreads_is_printed_both_ways():
    first, last = correlation_readings("MoE", (1.0, 0.0))
    assert (first.concentration, last.concentration) == (0.0, 1.0)
    assert (first.correlation, last.correlation) == pytest.approx((0.2307, 0.6154), abs=1e-4)
    assert (first.own_sd, last.own_sd) == pytest.approx((0.2947, 0.2947 / 2**0.5))
    none = correlation_readings("Dense", (0.0, 0.59, 0.6, 1.0))
    assert [x.correlation > 0 for x in none] == [False, False, True, True]


def test_the_confident_law_has_the_average_variance():
    law, profile = confident_moe_noise(), calibration.confidence_profile()
    top = torch.tensor([1 - u for u in profile.uncertainty], dtype=torch.float64)
    scale = law.scale(torch.stack([top, 1 - top], -1).log()[1:])  # in the first range the other token is likelier
    expected = calibration.confidence_stretch(calibration.CONFIDENCE_EXPONENT, calibration.CONFIDENCE_FLOOR)
    assert scale.tolist() == pytest.approx(expected[1:], rel=1e-9)
    mean_square = sum(w * x * x for w, x in zip(profile.shares, expected, strict=True))
    assert mean_square == pytest.approx(1, rel=1e-12) and math.fsum(profile.shares) == pytest.approx(1)


# ------------------------------------------------------------------------------------------------ displacement law
def test_two_tokens_under_a_student_level_have_a_student_displacement():
    noise = ScaleMixture((0.5,), (1.0,), df=4.0, correlation=0.36)
    law = displacement_law(noise, 0.3, 1.0, drawn=False)
    scale = 0.5 / math.sqrt(2) * 0.8 * math.sqrt(2)  # of delta_1 - delta_y
    for level in (0.01, 0.25, 0.5, 0.95, 0.999):
        assert law.quantile(level) == pytest.approx(stats.t.ppf(level, 4.0) * scale, rel=2e-3, abs=1e-6)
    assert law.sd == pytest.approx(scale * math.sqrt(2), rel=1e-3)
    assert law.spread(0.9) == pytest.approx(stats.t.ppf(0.95, 4.0) * scale, rel=2e-3)
    assert law.mad == pytest.approx(stats.t.ppf(0.75, 4.0) * scale, rel=2e-3)


@pytest.mark.parametrize("m", [0.0, 0.6, 1.0])
def test_variance_to_first_order(m):
    law = displacement_law(ScaleMixture((0.02,), (1.0,), correlation=0.4), 0.5, m, drawn=False)
    assert law.sd**2 == pytest.approx(0.02**2 * 0.6 * (1 + m * m), rel=1e-3)


def test_a_drawn_token_is_tilted_by_the_probability_of_being_drawn():
    # two tokens, p and 1 - p: E_drawn g(eps) = E[g q_y] / E q_y, with q_y = p / k by Gauss-Hermite
    p, sd = 0.3, 0.6
    x, w = np.polynomial.hermite_e.hermegauss(80)
    eps = math.sqrt(2) * sd * x
    q = 1 / (1 + (1 - p) / p * np.exp(eps))
    mean = float((w * q * eps).sum() / (w * q).sum())
    square = float((w * q * eps**2).sum() / (w * q).sum())
    law = displacement_law(ScaleMixture((sd,), (1.0,)), 1 - p, 1.0)
    assert law.mean == pytest.approx(mean, rel=1e-6) and mean < -0.3
    assert law.sd**2 == pytest.approx(square - mean**2, rel=1e-6)


def test_pooling_averages_masses():
    laws = [GridLaw(np.array([0.0, 1.0]), np.array(mass)) for mass in ([1.0, 0.0], [0.0, 1.0])]
    assert pooled(laws, (1.0, 3.0)).mean == 0.75


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((1.1, 0.5), "uncertainty"), ((0.5, -0.1), "runner_up"), ((0.5, 0.5, 0.0), "must move every law")],
)
def test_displacements_out_of_range_are_refused(arguments, name):
    uncertainty, m, *stretch = arguments
    with pytest.raises(InputError, match=name):
        displacement_law(dense_noise(), uncertainty, m, stretch=(stretch or [1.0])[0])


def test_concentration_by_loops(generator):
    p = torch.softmax(2 * torch.randn(3, 5, generator=generator, dtype=torch.float64), -1)
    by_hand = [
        sum(row[y] * sum((row[j] / (1 - row[y])) ** 2 for j in range(5) if j != y) for y in range(5))
        for row in p.tolist()
    ]
    assert concentration(p.log()).tolist() == pytest.approx(by_hand, rel=1e-10)
    sure = torch.tensor([[1 - 1e-14, 0.75e-14, 0.25e-14]], dtype=torch.float64)
    assert float(concentration(sure.log())) == pytest.approx(0.625, rel=1e-9)
