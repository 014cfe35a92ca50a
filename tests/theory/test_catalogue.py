"""Every theorem of the catalogue is present, decided as catalogued, and each of its mutants is killed."""

import re

import pytest

from theory.catalogue import PLANNED, find, module_names
from theory.judge import judge
from theory.theorem import KILL_FACTOR

COMPLETE = ("S", "O", "K", "G", "C")  # sections whose every entry must be there
# Theorem id -> instances at which no step of the derivation is compared with the library, each with its reason. None in S,
# O, K and G: what a theorem states there is an expression at every instance.
# C17 is a report: a fit to printed tables, and what was measured in two engines, have no expression; its two models do.
NOTHING_TO_COMPARE: dict[str, set[str]] = {"C17": {"tables_3_5", "table_4", "table_6", "table_7", "bf16", "int8"}}
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def test_the_catalogue_is_complete():
    there = list(module_names())
    planned = [f"{section}{n}" for section, size in PLANNED.items() for n in range(1, size + 1)]
    assert there == [i for i in planned if i in there]
    assert [i for i in planned if i[0] in COMPLETE and i not in there] == []


@pytest.mark.parametrize("theorem_id", list(module_names()))
def test_decided(theorem_id):
    theorem = find(theorem_id)
    verdict = judge(theorem)
    assert verdict.problems == ()
    assert verdict.holds
    for claim in verdict.claims:
        assert claim.holds
        assert claim.tolerance <= 1e-10 or claim.relation == "differs" or "digits" in claim.says, claim
    for mutant in verdict.mutants:
        assert mutant.killed
        assert mutant.margin > KILL_FACTOR * 1e-10
    assert verdict.derivation.holds
    assert verdict.derivation.steps >= 2
    for instance in theorem.instances():  # the derivation says something at every one of them
        assert max(map(len, theorem.derive(instance).chains), default=0) >= 2, instance.name
    if theorem_id[0] in COMPLETE:
        assert set(verdict.derivation.silent) == NOTHING_TO_COMPARE.get(theorem_id, set())


@pytest.mark.parametrize("theorem_id", list(module_names()))
def test_written_for_a_reader(theorem_id):
    theorem = find(theorem_id)
    assert theorem.hypotheses
    assert all(SNAKE.fullmatch(m.name) for m in theorem.mutants)
    assert len({m.name for m in theorem.mutants}) == len(theorem.mutants)
    assert theorem.source.split()[0].rstrip(";,:") in {"paper", "literature", "ours"}
    assert theorem.outcome.endswith(".")
    assert bool(theorem.refutes) == (theorem.kind == "counterexample")
    names = [i.name for i in theorem.instances()]
    assert all(SNAKE.fullmatch(n) for n in names), names
    for step in theorem.derive(theorem.instances()[0]).steps:
        assert step.why
