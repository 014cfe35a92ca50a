"""The committed claims about training are those of the tables, and a wrong file is refused."""

from __future__ import annotations

import pytest

from paper_repro.studies import STUDIES
from paper_repro.training_claims import Judged, claims_block, judged_by, read_claims, write_claims
from testbed.core.errors import InputError
from testbed.core.records import RunRecord

ROWS = [
    {"claim": "a | b", "verdict": "reproduced", "found": "+0.1", "to tell": ""},
    {"claim": "c", "verdict": "not reproduced", "found": "-0.1", "to tell": ""},
]


def recorded(folder, name="cis_table2", smoke=False, claims=ROWS):
    """A folder with a record."""
    RunRecord(result={"name": name, "smoke": smoke, "claims": claims}, provenance={}).save(folder / f"{name}_tiny.json")
    return folder


def test_claims_go_from_records_to_the_file_and_back(tmp_path):
    found = judged_by(recorded(tmp_path))
    assert [(one.table, one.claim, one.verdict) for one in found] == [
        ("cis_table2", "a | b", "reproduced"), ("cis_table2", "c", "not reproduced"),
    ]  # fmt: skip
    assert read_claims(write_claims(found, tmp_path / "claims.csv")) == found
    block = claims_block(found)
    assert f"| cis_table2 | {STUDIES['cis_table2'].title} | 1 | 0 | 1 |" in block
    assert r"| cis_table2 | a \| b | reproduced | +0.1 |" in block


def test_smoke_runs_and_folders_without_claims_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"records of full runs.*smoke run"):
        judged_by(recorded(tmp_path, smoke=True))
    with pytest.raises(InputError, match="claims need records of tables"):
        judged_by(recorded(tmp_path, claims=[]))


@pytest.mark.parametrize("wrong", [{"table": "cis_table99"}, {"verdict": "proven"}])
def test_a_table_or_a_word_that_does_not_exist_is_refused(wrong, tmp_path):
    right = {"table": "cis_table2", "claim": "c", "verdict": "within noise", "found": ""}
    path = write_claims([Judged(**right | wrong)], tmp_path / "claims.csv")
    with pytest.raises(InputError, match="a table and a verdict that exist"):
        read_claims(path)


def test_nothing_is_claimed_before_anything_is_judged(tmp_path):
    assert read_claims(tmp_path / "none.csv") == []
    assert "not been judged" in claims_block([])
