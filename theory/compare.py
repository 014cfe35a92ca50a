"""What changed between two runs of `theory verify`."""

from __future__ import annotations

from pathlib import Path

from theory.verdict_file import load_verdicts


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
