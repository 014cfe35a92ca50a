"""Samples of a mismatch, intervals over responses, and the verdict on a cell."""

from __future__ import annotations

import numpy as np
import pytest

from paper_repro.comparison import TOLERANCE, VERDICTS, judge, measured, median_deviation
from paper_repro.mismatch_samples import BINS, NoiseSample, TokenSample, resampled
from paper_repro.reported_tables import reported
from paper_repro.tables import _line
from testbed.core.seeds import SeedTree


def sample(p, q, response=None):
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    response = np.arange(len(p)) if response is None else np.asarray(response)
    finite = np.ones(len(p), dtype=bool)
    return TokenSample(
        name="s", model="Dense", response=response, logp_target=np.log(p), logp_behavior=np.log(q), finite=finite
    )


def test_the_ratio_is_made_of_confidence_and_displacement(rng):
    p, q = rng.uniform(0.01, 0.99, (2, 50))
    one = sample(p, q)
    assert np.allclose(np.exp(one.log_k), p + (1 - p) * np.exp(one.epsilon), rtol=1e-12)
    assert np.allclose(one.epsilon, np.log(p / (1 - p)) - np.log(q / (1 - q)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "name"),
    [
        (0.4999, "p<0.5"),
        (0.5, "0.5-0.9"),
        (0.8999, "0.5-0.9"),
        (0.95, "0.9-0.99"),
        (0.995, "0.99-0.999"),
        (0.9995, "p>0.999"),
    ],
)
def test_ranges_of_confidence_are_those_of_the_trainer(p, name):
    assert BINS[sample([p], [0.3]).bin[0]] == name


def test_whole_responses_are_drawn(rng):
    response = np.array([7, 7, 7, 2, 2, 9])
    for index in resampled(response, rng, 30):
        drawn = response[index]
        assert np.isin(drawn, response).all()
        for name, count in ((7, 3), (2, 2), (9, 1)):
            assert (drawn == name).sum() % count == 0
        inside = index[drawn == 7].reshape(-1, 3)
        assert (inside == [0, 1, 2]).all()


def test_an_interval_covers_what_tokens_of_one_response_share(rng):
    """All tokens of a response are equal: intervals must be those of 100 numbers, not of 2,000."""
    level = rng.normal(size=100)
    delta, response = np.repeat(level, 20), np.repeat(np.arange(100), 20)
    noise = NoiseSample(name="n", model="Dense", entries="", response=response, position=response, delta=delta)
    value, low, high = measured(noise, lambda s: {"mean": s.delta.mean()}, SeedTree("test"), 400)["mean"]
    assert value == pytest.approx(level.mean())
    assert high - low == pytest.approx(2 * 1.96 * level.std() / 10, rel=0.25)
    again = measured(noise, lambda s: {"mean": s.delta.mean()}, SeedTree("test"), 400)["mean"]
    assert again == (value, low, high)


def test_a_statistic_that_is_not_finite_in_a_draw_is_left_out():
    noise = NoiseSample(
        name="n", model="Dense", entries="", response=np.arange(3), position=np.arange(3), delta=np.array([1.0, 2, 3])
    )
    found = measured(noise, lambda s: {"x": 1.0 if s.delta.std() > 0 else float("nan")}, SeedTree("test"), 60)
    assert found["x"] == (1.0, 1.0, 1.0)


def test_verdicts_follow_the_declared_criterion():
    cell = reported(3)["sd(delta)", "MoE"]
    room = TOLERANCE * cell.mean + cell.rounding
    assert judge(cell, cell.mean - 0.9 * room, cell.mean + 0.9 * room) == "reproduced"
    assert judge(cell, cell.mean - 1.1 * room, cell.mean) == "within noise"
    assert judge(cell, 0.0, 1.0) == "within noise"
    assert judge(cell, cell.mean + 1.01 * room, 1.0) == "not reproduced"
    assert judge(cell, 0.0, cell.mean - 1.01 * room) == "not reproduced"
    assert judge(reported(8)["CIS", "Hyperparameters"], 0.0, 1.0) == "missing"
    zero = reported(3)["Median", "MoE"]
    assert judge(zero, -0.01, 0.01, tolerance=0.02) == "reproduced"
    assert judge(zero, 0.03, 0.04, tolerance=0.02) == "not reproduced"
    assert len(set(VERDICTS)) == len(VERDICTS)


def test_median_deviation():
    assert median_deviation(np.array([1.0, 2.0, 4.0, 100.0, 3.0])) == 1.0
    assert np.isnan(median_deviation(np.array([])))


@pytest.mark.parametrize(("value", "text"), [(20.4935, "20.5%"), (0.0031, "0.0031%"), (99.97, "99.97%"), (0.0, "0%")])
def test_a_percentage_is_printed_with_its_unit(value, text):
    cell = {"source": "s", "row": "r", "column": "c", "paper": "1.6%", "unit": "%", "verdict": "within noise"}
    cell |= {"ours": value, "low": value, "high": value}
    assert _line(cell)[4:6] == [text, f"[{text}, {text}]"]
    assert _line(cell | {"unit": ""})[4] != text


@pytest.mark.parametrize(("value", "text"), [(32099.0, "32,099"), (1234.0, "1,234"), (71.0, "71")])
def test_counts_are_grouped_as_the_papers(value, text):
    cell = {"source": "s", "row": "r", "column": "c", "paper": "2824021", "unit": "", "verdict": "size"}
    assert _line(cell | {"ours": value, "low": value, "high": value})[3:6] == ["2,824,021", text, ""]
