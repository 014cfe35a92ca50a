"""The false-alarm budget is sized for 200 gates: no more may be written than that."""

import re
from pathlib import Path

from testbed.stats.ledger import CAPACITY

ROOT = Path(__file__).parents[2]
MADE = re.compile(r"\b(?:MeanGate|LawGate|DirectedGate)\(|\bMeanCheck\.of_weighted_reward\(")


def count(texts):
    return sum(len(MADE.findall(t)) for t in texts)


def test_no_more_gates_than_the_budget():
    files = [p for folder in ("tests", "theory", "notebooks") for p in (ROOT / folder).rglob("*.py")]
    used = count(p.read_text() for p in files if p.parent.name != "stats")
    assert 1 <= used <= CAPACITY


def test_the_count_sees_what_it_counts():
    assert count(["gate = MeanGate(name=1)", "MeanCheck.of_weighted_reward('S1', w, effect=1)", "x = LawGate(\n"]) == 3
