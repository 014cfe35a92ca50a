"""The printed numbers: typed again here from the paper, added up, and compared with what the noise model was fitted to."""

from __future__ import annotations

import math

import pytest

from paper_repro.reported_tables import TABLES, reported
from testbed.core.errors import InputError
from testbed.policies.noise import reported as fitted_to

TYPED = [
    (1, "Qwen1.5-MoE-A2.7B: IcePop", "Avg", 34.18, 0.55),
    (1, "Qwen1.5-MoE-A2.7B: Base model (no RL)", "Minerva", 4.04, None),
    (2, "Fixed ratio cap (TIS, C=1.13)", "GSM8K", 14.99, 17.04),
    (2, "Two-sided band (w_t>=(1+p_t)/2)", "Avg", 6.01, 0.50),
    (3, "q99(|delta|)", "MoE", 1.144, None),
    (3, "Paired entries", "Dense", 1521672, None),
    (4, "sd(delta)", ">=7", 0.457, None),
    (5, "Dense", "Pr(|delta|>1)", 0.0001, None),
    (6, "sd(epsilon)", "Dense", 0.0997, None),
    (6, "Finite fraction", "MoE", 99.5, None),
    (7, "p>0.999", "MAD(log k)", 9.90e-6, None),
    (7, "p<0.5", "q05(epsilon)", -0.375, None),
    (8, "IcePop", "Hyperparameters", None, None),
    (9, "OlympiadBench", "Items", 674, None),
    (10, "Exact ratio", "Peak grad.", 69.5, 41.4),
    (10, "TIS (C=2)", "max_t|log k_t|", 37.7, 4.4),
    (11, "0", "Avg", 8.75, 7.44),
    (12, "1e-3", "Avg", 33.41, 0.36),
    (13, "KPop", "HumanEval", 50.20, 3.57),
    (14, "Seq-TIS", "vs. no corr.", 14.3, None),
    (14, "TIS", "vs. no corr.", -0.5, None),
]


@pytest.mark.parametrize(("table", "row", "column", "mean", "sd"), TYPED)
def test_numbers_are_as_printed(table, row, column, mean, sd):
    cell = reported(table)[row, column]
    assert (cell.mean, cell.sd, cell.status) == (mean, sd, "printed")


def test_every_cell_is_printed_or_says_why_not():
    for number in TABLES:
        for cell in reported(number).values():
            assert cell.status in {"printed", "none", "missing"}
            assert (cell.printed == "") == (cell.status == "missing")
            assert cell.mean is None or cell.status == "printed"
            assert cell.sd is None or cell.mean is not None


def test_rows_that_are_cut_off_hold_no_number():
    cut = {
        1: ("Seq-TIS", "Seq-MIS", "CIS"),
        8: ("Seq-MIS", "CIS"),
        10: ("Seq-TIS", "Seq-MIS", "CIS"),
        13: ("CIS",),
        14: ("CIS",),
    }
    for number, rows in cut.items():
        cells = [cell for cell in reported(number).values() if cell.row in rows]
        assert cells
        assert {(cell.status, cell.mean, cell.sd) for cell in cells} == {("missing", None, None)}


def test_the_numbers_add_up():
    three, four, five, six, seven = (reported(n) for n in (3, 4, 5, 6, 7))
    assert sum(seven.value(row, "Tokens") for row in seven.rows()) == six.value("Finite epsilon", "MoE")
    for model in ("Dense", "MoE"):
        share = 100 * six.value("Finite epsilon", model) / six.value("Sampled tokens", model)
        assert share == pytest.approx(six.value("Finite fraction", model), abs=0.05)
    shares = {name: four.value("Positions (%)", name) for name in four.columns()}
    assert sum(shares.values()) == pytest.approx(100.0, abs=0.2)
    mixed = sum(share * four.value("sd(delta)", name) ** 2 for name, share in shares.items()) / sum(shares.values())
    assert math.sqrt(mixed) == pytest.approx(three.value("sd(delta)", "MoE"), abs=0.002)
    assert five.value("MoE, N_flip=0", "sd(delta)") == four.value("sd(delta)", "0")
    cis = [reported(2)["CIS (lambda=2.3, kappa=5e-3)", "Avg"], reported(11)["2.3 (default)", "Avg"]]
    assert {(cell.mean, cell.sd) for cell in cis} == {(34.78, 0.25)}


def test_averages_are_those_of_the_five_benchmarks():
    for number in (1, 2, 11, 12):
        table = reported(number)
        for row in table.rows():
            cells = [table[row, column] for column in table.columns()]
            if cells[0].mean is not None:
                five = [cell.mean for cell in cells[:5]]
                assert sum(five) / 5 == pytest.approx(cells[5].mean, abs=0.011), row


def test_the_noise_model_was_fitted_to_the_same_numbers():
    names = {">= 7": ">=7"}
    for table, row, column in fitted_to.kept_cells():
        ours = reported(table)[names.get(row, row), names.get(column, column)]
        unit = (
            0.01
            if ours.unit == "%" or row.endswith("(%)") or fitted_to.reported(table, row, column).unit == 0.01
            else 1.0
        )
        assert fitted_to.reported(table, row, column).value == pytest.approx(unit * ours.mean, rel=1e-12), (
            table,
            row,
            column,
        )


def test_rounding_is_half_a_unit_of_the_last_digit():
    assert reported(3)["sd(delta)", "MoE"].rounding == 0.0005
    assert reported(5)["Dense", "Pr(|delta|>1)"].rounding == 0.00005
    assert reported(7)["p<0.5", "MAD(log k)"].rounding == pytest.approx(0.0005)
    assert reported(1)["Qwen1.5-MoE-A2.7B: TIS", "Avg"].rounding == 0.005
    assert reported(3)["Paired entries", "MoE"].rounding == 0.5


def test_what_is_not_there_is_refused():
    with pytest.raises(InputError, match="1 to 14"):
        reported(15)
    with pytest.raises(InputError, match="printed number"):
        reported(8).value("CIS", "Hyperparameters")
    with pytest.raises(InputError, match="printed number"):
        _ = reported(8)["CIS", "Hyperparameters"].rounding
