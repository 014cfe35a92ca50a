"""Records behind the figures: plain data, and what the figures' captions say of them is true of them."""

import json
import math

import pytest

from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.core.records import RunRecord
from theory.cap_regret import CHOICES
from theory.cli import app
from theory.judge import judge
from theory.record_files import write_records
from theory.records import available, chosen, record
from theory.show import show_theorem, table_lines

HERE = ("bias_readings", "bound_vs_moment", "mse_vs_cap", "regret")


@pytest.fixture(scope="module")
def found():
    return {name: record(name) for name in HERE}


def finite(value):
    """Whether everything in a record is a word, a finite number, a truth value or None."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and finite(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(finite, value))
    return value is None or (
        type(value) in (str, bool, int, float) and value not in (math.inf, -math.inf) and value == value
    )


def test_every_record_is_listed_with_a_title_and_holds_plain_data(found):
    assert set(HERE) <= set(available())
    assert all(title.endswith(".") for title in available().values())
    assert all(map(finite, found.values()))


def test_an_unknown_name_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(InputError, match=r"a record must have a known name; found 'regrets' \(one of bias_readings, "):
        write_records(["regret", "regrets"], tmp_path)
    assert not list(tmp_path.iterdir())
    assert chosen([]) == list(available())


def test_only_the_readings_with_the_full_product_or_the_critic_are_unbiased(found):
    bias, ages = found["bias_readings"]["relative_bias"], found["bias_readings"]["age"]
    exact = {"full_product", "prefix_with_critic", "segment_end_with_critic"}
    for reading, values in bias.items():
        assert len(values) == len(ages)
        assert values[0] < 1e-10, "no bias on-policy"
        if reading in exact:
            assert max(values) < 1e-10
        else:
            assert min(values[1:]) > 1e-3
            assert values == sorted(values), "grows with staleness"
    for near, far in (
        ("segment_end_with_reward", "prefix_with_reward"),
        ("prefix_with_reward", "token"),
        ("token", "none"),
    ):
        assert all(a < b for a, b in zip(bias[near][1:], bias[far][1:], strict=True))


def test_the_product_of_sups_bounds_and_the_product_of_averages_does_not(found):
    below = set()
    for rows in found["bound_vs_moment"].values():
        assert rows["second_moment"][0] == pytest.approx(1.0, abs=1e-12)
        for true, sup, average in zip(
            *(rows[k] for k in ("second_moment", "product_of_largest", "product_of_averages")), strict=True
        ):
            assert true <= sup * (1 + 1e-12)
            below.add(average < true * (1 - 1e-3))
    assert below == {True, False}


def test_the_exact_mark_is_the_lowest_point_of_each_curve(found):
    for curve in found["mse_vs_cap"]["curves"]:
        least = curve["marks"]["exact"]["mse"]
        assert least <= min(curve["mse"]) * (1 + 1e-12)
        assert min(curve["mse"]) <= least * 1.05
        assert all(mark["mse"] >= least * (1 - 1e-12) for mark in curve["marks"].values())
        assert all(m <= b for m, b in zip(curve["mse"], curve["d2_bound"], strict=True))
        assert all(b is None or m <= b for m, b in zip(curve["mse"], curve["chi2_bound"], strict=True))


def test_regret_is_zero_for_the_exact_cap_only_and_sqrt_n_strays_least(found):
    rows, largest = found["regret"]["rows"], found["regret"]["largest"]
    assert len({row["law"] for row in rows}) >= 4 and len({row["n"] for row in rows}) == 5
    assert all(row["regret"]["O1"] == 0 and min(row["regret"].values()) >= 0 for row in rows)
    others = {choice: largest[choice]["regret"] for choice in CHOICES[1:]}
    assert min(others, key=others.get) == "sqrt_n"
    assert min(others.values()) > 0.1


def test_the_table_is_printed_with_the_theorem_and_kept_in_the_verdict():
    from theory.catalogue import find

    theorem = find("O6")
    verdict = judge(theorem).record()
    assert list(verdict["table"]) == theorem.table()
    text = show_theorem("O6")
    assert all(line in text for line in table_lines(theorem.table()))
    assert "Table" not in show_theorem("O3")
    assert table_lines([]) == []


def test_the_command_writes_each_record_with_its_provenance(capsys, tmp_path):
    assert run_command(app, "theory", ["records", "bound_vs_moment", "--out", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.startswith("bound_vs_moment: ")
    path = tmp_path / "r" / "bound_vs_moment.json"
    saved = RunRecord.load(path)
    assert saved.result == json.loads(json.dumps(record("bound_vs_moment")))
    assert saved.provenance["python"]
    assert run_command(app, "theory", ["records", "--list"]) == 0
    assert "regret: Regret of" in capsys.readouterr().out
    assert run_command(app, "theory", ["records", "nothing"]) == 2
