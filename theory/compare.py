"""What changed between two runs of `theory verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError


def load_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    """Return verdict records by id.

    Raises
    ------
    InputError   no such file, or no verdicts in it
    """
    try:
        content = json.loads(path.read_text())
        return {v["id"]: v for v in content["verdicts"]}
    except FileNotFoundError:
        raise InputError("the record must exist", found=str(path), hint="write one with verify --json") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError("the record must be a verdicts.json", found=f"{path}: {error!r}") from None


def compare_runs(before: Path, after: Path) -> list[str]:
    """Return one line per theorem that appeared, disappeared, or changed its verdict or its mutants' fate."""
    a, b = load_verdicts(before), load_verdicts(after)
    lines = [f"{i}: only in {before}" for i in a if i not in b] + [f"{i}: only in {after}" for i in b if i not in a]
    for i in a:
        if i not in b:
            continue
        if a[i]["holds"] != b[i]["holds"]:
            lines.append(f"{i}: holds {a[i]['holds']} -> {b[i]['holds']} ({'; '.join(b[i].get('problems', []))})")
        fate_a = {m["name"]: m["killed"] for m in a[i]["mutants"]}
        fate_b = {m["name"]: m["killed"] for m in b[i]["mutants"]}
        for name in sorted(set(fate_a) | set(fate_b)):
            if fate_a.get(name) != fate_b.get(name):
                lines.append(f"{i}:{name}: killed {fate_a.get(name)} -> {fate_b.get(name)}")
    return lines
