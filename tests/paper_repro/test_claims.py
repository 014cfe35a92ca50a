"""The papers' claims and the verdicts on them."""

from __future__ import annotations

import json

import pytest

from paper_repro.__main__ import app
from paper_repro.claims import claims
from testbed.core.command import run_command
from testbed.core.errors import InputError
from theory.verdict_file import load_verdicts, verdict_word


@pytest.fixture
def verdict_file(tmp_path):
    path = tmp_path / "verdicts.json"
    verdicts = [
        {"id": "S1", "kind": "identity", "holds": True, "mutants": []},
        {"id": "S4", "kind": "counterexample", "holds": True, "mutants": []},
        {"id": "S9", "kind": "identity", "holds": False, "mutants": []},
    ]
    path.write_text(json.dumps({"header": {}, "verdicts": verdicts}))
    return path


def listed(capsys, *arguments):
    status = run_command(app, "paper-repro", ["list", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_every_claim_names_known_theorems():
    from theory.catalogue import PLANNED

    known = {f"{section}{n}" for section, size in PLANNED.items() for n in range(1, size + 1)}
    assert {name for claim in claims() for name in claim.theorems} - known == set()


def test_a_formula_of_spire_is_called_a_reading():
    decided = [claim for claim in claims() if claim.paper == "SPIRE" and claim.theorems]
    assert len(decided) >= 6
    assert all(claim.note.startswith("reading: ") for claim in decided)


def test_a_claim_without_theorem_has_the_printed_number():
    assert all(claim.printed for claim in claims() if not claim.theorems)


def test_the_list_shows_each_claim_and_its_theorems(capsys):
    status, out, _ = listed(capsys)
    assert status == 0
    assert all(claim.claim in out and claim.note in out for claim in claims())
    assert "decided by: S1 S2 S17" in out
    assert "[printed: +3.6 to +6.8 points]" in out


def test_verdicts_are_added_word_by_word(capsys, verdict_file):
    status, out, _ = listed(capsys, "--verdicts", str(verdict_file))
    assert status == 0
    assert "S1 holds" in out
    assert "S4 refuted as claimed" in out
    assert "S9 NOT DECIDED" in out
    assert "S2 not run" in out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"verdicts": [{}]}', '{"verdicts": 3}'])
def test_a_bad_verdict_file_is_one_sentence(capsys, tmp_path, content):
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content)
    status, out, err = listed(capsys, "--verdicts", str(path))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert str(path) in err
    with pytest.raises(InputError):
        load_verdicts(path)


def test_a_verdict_that_does_not_hold_never_reads_as_holding():
    kinds = ("identity", "bound", "counterexample", "report", "identity + counterexample")
    assert {verdict_word({"kind": kind, "holds": False}) for kind in kinds} == {"NOT DECIDED"}
