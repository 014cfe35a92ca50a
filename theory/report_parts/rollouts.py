"""The diagnosis of the bundled rollouts: the sections that `testbed diagnose` prints, set as tables."""

from __future__ import annotations

from typing import Any

from testbed.core.errors import InputError
from testbed.core.sections import Section
from testbed.diagnosis.printed import report_sections
from theory.report_parts.markup import Markup, element, safe, table
from theory.report_parts.notation import prose


def diagnosis(record: dict[str, Any]) -> Markup:
    """Sections of a diagnosis record.

    Raises
    ------
    InputError   a record that is no diagnosis
    """
    result = record.get("result", record)
    try:
        sections = report_sections(_numbers(result))
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        raise InputError(
            "the diagnosis must be a record of `testbed diagnose --json`", found=f"{type(error).__name__}: {error}"
        ) from error
    source = element("p", "Of ", element("code", str(result["file"])), ".") if "file" in result else None
    return safe(source, *map(_section, sections))


def _section(section: Section) -> Markup:
    numbers = [i for i, name in enumerate(section.header) if i and name not in section.text]
    body = [[prose(cell) for cell in row] for row in section.rows]
    return safe(
        element("h3", _title(section.title)),
        element("p", prose(section.says)) if section.says else None,
        table([prose(name) for name in section.header], body, numbers=numbers, stack=False) if section.header else None,
        *(element("p", prose(remark), class_="soft") for remark in section.remarks),
    )


def _title(title: str) -> str:
    return title.capitalize().replace("spire", "SPIRE") if title.isupper() else title


def _numbers(value: Any) -> Any:
    """Undo what JSON cannot say: "inf" and "nan" are numbers again."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
