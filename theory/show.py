"""Print a theorem the way a reader wants it: hypotheses first, then statement, derivation, claims, mutants."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from theory.catalogue import find
from theory.derivation import POINTS, check_steps
from theory.row_blocks import row_blocks

WIDTH = 110
NOTATION = (
    "pi target, mu_k behavior of segment k, rho_t = pi/mu of the drawn token, W_t = rho_1 ... rho_t, W_(k) through the end of "
    "segment k, h_t the tokens before t, s_t = grad log pi(y_t | h_t), R reward, G = grad E_pi[R], Q value of a token, xi the "
    "schedule's own noise; as symbols p_h_a, m_k_h_a, r_k_h_a, R_y: pi, mu, rho of token a after h, reward of y"
)


def show_theorem(theorem_id: str, latex: bool = False) -> str:
    """Return the text of a theorem with its derivation executed on its first instance's shape."""
    theorem = find(theorem_id)
    instance = theorem.instances()[0]
    derivation = theorem.derive(instance)
    problem = check_steps(derivation)
    lines = [f"{theorem.id} · {theorem.kind} · {theorem.headline}", "", "Hypotheses"]
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
    if theorem.mutants:
        lines += ["", f"Mutants (python -m theory break {theorem.id}:NAME)"]
        lines += [f"  {m.name} ({m.kind}): {m.why}" for m in theorem.mutants]
    if theorem.table is not None:
        lines += ["", "Table", *table_lines(theorem.table())]
    lines += ["", "What it means", *_wrapped(theorem.outcome)]
    return "\n".join(lines)


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as aligned plain text, numbers to four digits; a new table, after an empty line, where the columns change.

    Examples
    --------
    >>> table_lines([{"law": "a", "n": 4, "regret": 0.123456}, {"law": "bc", "n": 16, "regret": 12345.6}])
    ['  law   n     regret', '  a     4     0.1235', '  bc   16  1.235e+04']
    """
    lines: list[str] = []
    for block in row_blocks(rows):
        lines += [*([""] if lines else []), *_aligned(block)]
    return lines


def _aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(rows[0])
    cells = [
        columns,
        *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in (r[c] for c in columns)] for r in rows),
    ]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    words = [isinstance(rows[0][c], str) for c in columns]
    return [
        "  "
        + "  ".join(v.ljust(w) if left else v.rjust(w) for v, w, left in zip(line, widths, words, strict=True)).rstrip()
        for line in cells
    ]


def _wrapped(text: str, indent: int = 2) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad) or [pad]
