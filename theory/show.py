"""Print a theorem the way a reader wants it: hypotheses first, then statement, derivation, claims, mutants."""

from __future__ import annotations

import textwrap

import sympy as sp

from theory.catalogue import find
from theory.derivation import POINTS, check_steps

WIDTH = 110


def show_theorem(theorem_id: str, latex: bool = False) -> str:
    """Return the text of a theorem with its derivation executed on its first instance's shape."""
    theorem = find(theorem_id)
    instance = theorem.instances()[0]
    derivation = theorem.derive(instance)
    problem = check_steps(derivation)
    lines = [f"{theorem.id} · {theorem.kind} · {theorem.title}", "", "Hypotheses"]
    lines += [f"  ({n}) {h}" for n, h in enumerate(theorem.hypotheses, 1)]
    lines += ["", "Statement", *_wrapped(theorem.statement), "", f"Source: {theorem.source}"]
    if theorem.reading:
        lines.append("This is a reading: the paper's abstract is public to us, its formulas are not.")
    lines += [f"  {r}" for r in theorem.references]
    lines += [
        "",
        f"Derivation (on the shape of instance '{instance.name}'; each line checked exactly at {POINTS} random points)",
    ]
    number = 0
    for chain in derivation.chains:
        for position, step in enumerate(chain):
            number += 1
            relation = step.relation if position else " "
            if latex:
                lines.append(f"% {number}. {step.label}: {step.why}")
                lines.append(rf"{relation} {step.tex or sp.latex(step.flat()[0])} \\")
                continue
            lines.append(f"  {number:>2}. {relation} [{step.label}] {step.tex}".rstrip())
            lines += _wrapped(f"because {step.why}" if position else step.why, 8)
            size = len(step.flat())
            shown = textwrap.shorten(str(step.flat()[0]), 2 * WIDTH, placeholder=" ...")
            lines += _wrapped(f"{'first of ' + str(size) + ' components: ' if size > 1 else ''}{shown}", 8)
        lines.append("")
    lines.append("every step follows" if not problem else f"BROKEN: {problem}")
    lines += ["", "Claims decided on every instance"]
    for c in theorem.claims:
        sign = {"equal": "=", "at_most": "<=", "differs": "!="}[c.relation]
        lines.append(f"  {c.name}: {c.left} {sign} {c.right}  ({c.says})")
    lines += ["", f"Mutants (python -m theory break {theorem.id}:NAME)"]
    lines += [f"  {m.name} ({m.kind}): {m.why}" for m in theorem.mutants]
    lines += ["", "What it means", *_wrapped(theorem.outcome)]
    return "\n".join(lines)


def _wrapped(text: str, indent: int = 2) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad) or [pad]
