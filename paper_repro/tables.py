"""Tables out of records: Markdown and CSV, the paper's number beside ours, a verdict on each cell."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from paper_repro.studies import STUDIES
from testbed.core.errors import InputError
from testbed.core.sections import Section

HEADER = ("source", "row", "column", "paper", "ours", "interval", "verdict")
LONG = 60  # a table of more lines of Markdown is printed in its short form


def table_text(result: dict[str, Any]) -> str:
    """Return a record's result as Markdown: cells, claims, tables of another form, checks, remarks, sources."""
    note = " (smoke: numbers show only that it runs)" if result["smoke"] else ""
    lines = [f"# {result['name']}, {result['scale']} scale: {result['title']}{note}", ""]
    if result["cells"]:
        lines += [
            *_markdown(HEADER, [_line(cell) for cell in result["cells"]]),
            "",
            f"Verdicts. {result['criterion']}.",
            "",
        ]
        lines += [_counted(result["cells"]), ""]
    if claims := result.get("claims"):
        header = ("claim", "verdict", "found", "to tell")
        lines += [*_markdown(header, [[claim[name] for name in header] for claim in claims]), ""]
    titles = dict.fromkeys(row.get("table", "") for row in result["rows"])
    for title in titles:
        rows = [row for row in result["rows"] if row.get("table", "") == title]
        names = tuple(dict.fromkeys(name for row in rows for name in row if name != "table"))
        lines += [f"## {title}", ""] if title else []
        lines += [*_markdown(names, [[row.get(name, "") for name in names] for row in rows]), ""]
    if result["checks"]:
        lines += ["| statement | verdict | found |", "|---|---|---|"]
        lines += [f"| {_safe(c['statement'])} | {c['verdict']} | {_safe(c['found'])} |" for c in result["checks"]] + [
            ""
        ]
    for title, entries in (
        ("Where we differ, and why", result["remarks"]),
        ("Ours", [f"{name}: {text}" for name, text in result["sources"].items()]),
    ):
        if entries:
            lines += [f"{title}:", "", *(f"* {entry}" for entry in entries), ""]
    return "\n".join(lines).rstrip() + "\n"


def short_form(result: dict[str, Any]) -> list[Section]:
    """Return what a terminal shows of a long table: its cells without intervals, every verdict, and which tables it holds.

    Numbers behind claims, further tables and remarks stay in the file: they are too wide or too long for a terminal.
    """
    remarks = ["Smoke: numbers show only that it runs."] if result["smoke"] else []
    remarks += [_counted(result["cells"]) + "."] if result["cells"] else []
    title = f"{result['name']}, {result['scale']} scale"
    sections = [Section(title=title, says=f"{result['title']}.", remarks=remarks)]
    for source in dict.fromkeys(cell["source"] for cell in result["cells"]):
        lines = [_line(cell) for cell in result["cells"] if cell["source"] == source]
        rows = [(row, column, paper, ours, verdict) for _, row, column, paper, ours, _, verdict in lines]
        says = "The paper's numbers beside ours; intervals are in the whole table."
        header, text = ("row", "column", "paper", "ours", "verdict"), ("column", "verdict")
        sections.append(Section(title=source.upper(), says=says, header=header, rows=rows, text=text))
    claims, checks = result.get("claims", []), result["checks"]
    if claims:
        rows = [(claim["verdict"], claim["claim"]) for claim in claims]
        says = _tallied(claims, "claims") + "."
        sections.append(Section(title="CLAIMS", says=says, header=("verdict", "claim"), rows=rows, text=("claim",)))
    if checks:
        rows = [(check["verdict"], f"{check['statement']}: {check['found']}") for check in checks]
        header, says = ("verdict", "check, and what was found"), _tallied(checks, "checks") + "."
        both = {one["verdict"] for one in [*claims, *checks]} >= {"within noise", "cannot be told"}
        words = ["A check that cannot be told is what a claim within noise is: the runs decide neither way."] * both
        sections.append(Section(title="CHECKS", says=says, header=header, rows=rows, text=header[1:], remarks=words))
    if result["rows"]:
        titles = [row.get("table") or result["title"] for row in result["rows"]]
        rows = [(str(titles.count(title)), title) for title in dict.fromkeys(titles)]
        says = "Shown in the whole table only."
        sections.append(Section(title="TABLES", says=says, header=("rows", "table"), rows=rows, text=("table",)))
    return sections


def table_csv(result: dict[str, Any]) -> str:
    """Return cells, claims, rows and checks as CSV: one kind per block of columns, told apart by `kind`."""
    lines: list[dict[str, Any]] = [{"kind": "cell", **cell} for cell in result["cells"]]
    lines += [{"kind": "claim", **claim} for claim in result.get("claims", [])]
    lines += [{"kind": "row", **row} for row in result["rows"]]
    lines += [{"kind": "check", **check} for check in result["checks"]]
    names = list(dict.fromkeys(name for line in lines for name in line)) or ["kind"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_tables(result: dict[str, Any], folder: Path, stem: str) -> tuple[Path, Path]:
    """Write both forms of a result into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown, comma = folder / f"{stem}.md", folder / f"{stem}.csv"
    markdown.write_text(table_text(result))
    comma.write_text(table_csv(result))
    return markdown, comma


def tables_from_records(out: Path) -> list[str]:
    """Write the tables of every record under `out`/records again, and an index; return one line per study and scale.

    Raises
    ------
    InputError   a record that cannot be read
    """
    lines = []
    for study in STUDIES.values():
        for scale in study.scales:
            stem = f"{study.name}_{scale}"
            path = out / "records" / f"{stem}.json"
            if not path.exists():
                lines.append(f"{stem}: not run (python -m paper_repro run {study.name} --scale {scale})")
                continue
            try:
                record = json.loads(path.read_text())
                write_tables(record["result"], out / "tables", stem)
                lines.append(f"{stem}: {_summary(record['result'])}{_stale(record['provenance'])}")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError("a record must be readable", found=f"{path}: {error!r}", hint="run it again") from None
    (out / "tables").mkdir(parents=True, exist_ok=True)
    (out / "tables" / "index.md").write_text("\n".join(f"* {line}" for line in lines) + "\n")
    return lines


def _summary(result: dict[str, Any]) -> str:
    parts = [_counted(result["cells"])] if result["cells"] else []
    if result["rows"]:
        parts.append(f"{len(result['rows'])} rows")
    words = [claim["verdict"] for claim in result.get("claims", [])]
    parts += [f"{words.count(word)} claims: {word}" for word in dict.fromkeys(words)]
    words = [check["verdict"] for check in result["checks"]]
    parts += [f"{words.count(word)} checks: {word}" for word in dict.fromkeys(words)]
    return "; ".join(parts) + (" (smoke)" if result["smoke"] else "")


def _stale(header: dict[str, Any]) -> str:
    return " [made from a changed tree]" if header.get("dirty") else ""


def _counted(cells: list[dict[str, Any]]) -> str:
    return _tallied(cells, "cells")


def _tallied(judged: list[dict[str, Any]], kind: str) -> str:
    words = [one["verdict"] for one in judged]
    return f"{len(judged)} {kind}: " + ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _line(cell: dict[str, Any]) -> list[str]:
    unit, paper = cell["unit"], cell["paper"]
    known = cell["low"] is not None and cell["verdict"] != "size"
    interval = f"[{_number(cell['low'], unit)}, {_number(cell['high'], unit)}]" if known else ""
    printed = f"{int(paper):,}" if paper.isdecimal() else paper  # counts are grouped, the paper's as ours
    return [
        cell["source"],
        cell["row"],
        cell["column"],
        printed,
        _number(cell["ours"], unit),
        interval,
        cell["verdict"],
    ]


def _number(value: float | str | None, unit: str = "") -> str:
    if value is None:
        return ""
    if isinstance(value, str):  # infinities and NaN are strings in a record
        return value
    if unit == "%":
        return f"{value:.3g}%" if abs(value) < 99 else f"{value:.2f}%"  # 99.97% is not 100%
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def _markdown(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_safe, header)) + " |", "|---" * len(header) + "|"]
    return lines + ["| " + " | ".join(map(_safe, row)) + " |" for row in rows]


def _safe(text: str) -> str:
    return str(text).replace("|", "\\|")
