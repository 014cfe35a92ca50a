"""The printed fit of the calibrated noise: every reported number is there, and what does not fit is said."""

import json
import math

import pytest

from testbed.cli import app
from testbed.core.command import run_command
from testbed.core.sections import plain_lines
from testbed.diagnosis.noise_fit import noise_fit
from testbed.policies.noise import calibration


@pytest.fixture(scope="module")
def fit():
    return noise_fit()


def test_every_entry_is_printed_with_its_error(fit):
    sections, record = fit
    text = {section.title: "\n".join(plain_lines(section)) for section in sections}
    assert [line for lines in text.values() for line in lines.splitlines() if len(line) > 80] == []
    assert "3 MoE            q99(|delta|)       1.144     1.142  -0.2%  no      predicted" in text["NOISE OF ONE LOGIT"]
    assert "0.457 0.4553 -0.4%" in text["NOISE BY ROUTING FLIPS (Table 4)"]
    assert "+20.0% off" in text["DISPLACEMENT OF DRAWN TOKENS (Table 6)"]
    assert "2.03 to 2.37 as reported" in " ".join(text["DISPLACEMENT BY CONFIDENCE (Table 7)"].split())
    counts = [len(record[k]) for k in ("logits", "flips", "displacements", "confidence_alike", "confidence_stretched")]
    assert counts == [10, 20, 6, 15, 15]


def test_both_readings_of_the_spreads_are_printed(fit):
    sections, record = fit
    text = " ".join(" ".join(plain_lines(sections[-1])).split())
    assert "correlation r between 0.23 and 0.62" in text
    assert "MoE 1.000 +0.615 0.2084" in text
    assert [x["concentration"] for x in record["correlation"]["MoE"]][::3] == [0.0, 1.0]
    assert record["constants"]["MOE_CORRELATION"] == calibration.MOE_CORRELATION


def test_the_command_prints_and_writes(capsys, tmp_path):
    out = tmp_path / "noise.json"
    assert run_command(app, "testbed", ["noise", "--json", str(out)]) == 0
    assert capsys.readouterr().out.startswith("NOISE OF ONE LOGIT\n")
    row = json.loads(out.read_text())["result"]["logits"][2]
    assert (row["reported"], row["role"], row["rounds"]) == ("0.336", "predicted", False)
    assert math.isclose(row["relative_error"], row["made"] / 0.336 - 1)
