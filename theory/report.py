"""The report: one HTML file made of records and finished images. It computes nothing and needs no network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from theory.report_parts.ending import reproduce
from theory.report_parts.images import OVERVIEW, picture
from theory.report_parts.look import STYLE
from theory.report_parts.markup import Markup, element, safe
from theory.report_parts.overview import SECTIONS, contents, decided, provenance, sections, verdict_list
from theory.report_parts.rollouts import diagnosis as diagnosed
from theory.report_parts.theorem import article
from theory.verdict_file import load_run

MENTION = re.compile(r'<a href="#\w+" class="ref">(\w+)</a>')
NEEDED = {
    "mutants": {"name", "killed", "margin"},
    "claims": {"name", "relation", "says", "holds", "lhs", "rhs", "gap", "tolerance", "instances", "worst"},
}
TITLE = "What off-policy corrections do: verdicts"


def write_report(verdicts: Path, diagnosis: Path | None, figures: Path | None, out: Path) -> Path:
    """Assemble the report.

    Parameters
    ----------
    verdicts : Path           of `theory verify --json`
    diagnosis : Path | None   of `testbed diagnose --json`
    figures : Path | None     folder of NAME.png; those that are missing are left out
    out : Path                the HTML file

    Returns
    -------
    Path    `out`

    Raises
    ------
    InputError   a file or folder that is missing, or a file of another form
    """
    header, found = load_run(verdicts)
    record = None if diagnosis is None else _load(diagnosis)
    if figures is not None and not figures.is_dir():
        raise InputError("`--figures` must name a folder", found=figures, hint="`python -m figures` writes one")
    for verdict in found.values():
        _check(verdict)
    page = render(header, list(found.values()), record, figures)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError("`--out` must name a file that can be written", found=f"{out}: {error.strerror}") from error
    return out


def render(
    header: dict[str, Any], verdicts: list[dict[str, Any]], diagnosis: dict[str, Any] | None, figures: Path | None
) -> str:
    """The page as a string."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", TITLE),
        element("style", Markup(STYLE)),
    )
    theorems = [
        safe(
            element("h2", SECTIONS.get(letter, letter), id=f"section-{letter}"),
            *(article(verdict, figures) for verdict in members),
        )
        for letter, members in sections(verdicts).items()
    ]
    rollouts = []
    if diagnosis is not None:
        rollouts = [element("h2", "Diagnosis of the bundled rollouts", id="diagnosis"), diagnosed(diagnosis)]
    body = element(
        "body",
        element("header", element("h1", TITLE), decided(header, verdicts), provenance(header)),
        contents(verdicts, diagnosis is not None),
        element(
            "main",
            element("h2", "Verdicts", id="verdicts"), verdict_list(verdicts), picture(OVERVIEW, figures),
            *theorems,
            *rollouts,
            element("h2", "Reproduce it, break it", id="reproduce"), reproduce(verdicts),
        ),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{_live_links(element('html', head, body, lang='en'), verdicts)}\n"


def _check(verdict: dict[str, Any]) -> None:
    for part, needed in NEEDED.items():
        for item in verdict.get(part) or ():
            missing = sorted(needed - (set(item) if isinstance(item, dict) else set()))
            if missing:
                raise InputError(
                    "the verdicts must be records of `theory verify --json`",
                    found=f"{part} of {verdict['id']} without {', '.join(missing)}",
                )


def _live_links(page: str, verdicts: list[dict[str, Any]]) -> str:
    """Keep mentions of theorems as links where this page has the theorem."""
    here = {str(verdict["id"]) for verdict in verdicts}
    return MENTION.sub(lambda match: match[0] if match[1] in here else match[1], page)


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            "the diagnosis must exist", found=path, hint="`python -m testbed diagnose` writes one"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError("the diagnosis must be readable JSON", found=f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise InputError("the diagnosis must be a record", found=path)
    return content
