"""Verdict records as `theory verify --json` writes them, and the one word each is summed up in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError

FAILED, NOT_RUN = "NOT DECIDED", "not run"
WORDS = {"counterexample": "refuted as claimed", "report": "reported"}
LEGAL_WORDS = {"holds", FAILED, *WORDS.values()}


def load_verdicts(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read a verdict file as a mapping from theorem id to its verdict.

    Raises
    ------
    InputError   if the file is missing, is not JSON, or holds no list of verdicts
    """
    return load_run(path)[1]


def load_run(path: str | Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a verdict file: what ran, and its verdicts by theorem id.

    Raises
    ------
    InputError   if the file is missing, is not JSON, or holds no list of verdicts
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError("the verdict file must exist", found=path, hint="`make verify` writes one") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError("the verdict file must be readable JSON", found=f"{path}: {error}") from None
    verdicts = content.get("verdicts") if isinstance(content, dict) else None
    if not isinstance(verdicts, list) or not all(isinstance(v, dict) and "id" in v for v in verdicts):
        raise InputError('the verdict file must hold a list "verdicts" of records with an "id"', found=path)
    header = content.get("header")
    return (header if isinstance(header, dict) else {}), {verdict["id"]: verdict for verdict in verdicts}


def verdict_word(verdict: dict[str, Any] | None) -> str:
    """Sum up one verdict.

    Examples
    --------
    >>> verdict_word({"kind": "identity", "holds": True}), verdict_word({"kind": "bound", "holds": False})
    ('holds', 'NOT DECIDED')
    >>> verdict_word({"kind": "counterexample", "holds": True}), verdict_word(None)
    ('refuted as claimed', 'not run')
    """
    if verdict is None:
        return NOT_RUN
    if not verdict.get("holds"):
        return FAILED
    return WORDS.get(verdict.get("kind", ""), "holds")
