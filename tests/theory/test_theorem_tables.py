"""Tables that come with a theorem: several in one list of rows, printed, in the verdict and in the report."""

import json

from theory.catalogue import find
from theory.report_parts.rows import tables
from theory.report_parts.theorem import article
from theory.row_blocks import row_blocks
from theory.show import show_theorem, table_lines
from theory.theorems import k07_active_sets

ROWS = [{"law": "a<b", "n": 4, "gap": 0.5}, {"law": "c", "n": 16, "gap": "-"}, {"set": "tie", "gap": "inf"}]


def test_a_new_table_begins_where_the_columns_change():
    assert [len(block) for block in row_blocks(ROWS)] == [2, 1]
    assert table_lines(ROWS) == ["  law   n  gap", "  a<b   4  0.5", "  c    16    -", "", "  set  gap", "  tie  inf"]
    html = tables(ROWS)
    assert html.count("<table") == 2 and "a&lt;b" in html and "∞" in html
    assert tables([]) is None


def test_the_report_shows_the_tables_of_a_verdict():
    verdict = {"id": "O6", "kind": "report", "title": "t", "holds": True, "table": ROWS}
    assert article(verdict, None).count("The numbers: 2 tables, 3 rows") == 1
    assert "The numbers" not in article({**verdict, "table": []}, None)


def test_k7_counts_its_problems_and_names_the_worst_gaps(monkeypatch):
    few = k07_active_sets.few
    monkeypatch.setattr(k07_active_sets, "instances", few)
    table = k07_active_sets.active_set_table()
    assert [row["active_set"] for row in table] == [given.name for given in few()] and len(table) == 10
    for row, given in zip(table, few(), strict=True):
        assert row["problems"] == row["named"] == len(given.table) == 100
        assert max(row["golden"], row["brent"], row["slsqp"], row["residual"]) <= 1e-12
        assert 0 < row["trusted"] <= 1e-3
        assert row["distance"] <= 1e-7 if given.bends_up else row["distance"] == "-"
    json.dumps(table, allow_nan=False)
    text = "\n".join(table_lines(table))
    assert text.count("100    100") == 10


def test_theorems_that_have_tables():
    assert find("K7").table is k07_active_sets.active_set_table
    text = show_theorem("O6")
    assert all(line in text for line in table_lines(find("O6").table()))
    assert "auto_least" in text
