"""The steps of a derivation as a reader follows them: each line with the reason why it follows from the one before."""

from __future__ import annotations

import sympy as sp

from theory.catalogue import find, module_names
from theory.derivation import Step
from theory.report_parts.formula import mathml, printable
from theory.report_parts.markup import Markup, element, safe
from theory.report_parts.notation import prose

SIGNS = {"=": "=", "<=": r"\le", ">=": r"\ge"}


def derivation_steps(theorem_id: str) -> Markup | None:
    """Chains of steps, written for the shape of the first instance; None for an id without a theorem here."""
    if theorem_id.upper() not in module_names():
        return None
    theorem = find(theorem_id)
    number = 0
    chains = []
    for chain in theorem.derive(theorem.instances()[0]).chains:
        lines = []
        for position, step in enumerate(chain):
            number += 1
            lines.append(_line(number, step, first=position == 0))
        chains.append(element("div", *lines, class_="chain"))
    return safe(*chains)


def latex_line(step: Step) -> str:
    """The line as LaTeX, "" if it is too long to be read."""
    tex = step.tex or sp.latex(step.flat()[0])
    return tex if printable(tex) else ""


def with_relation(tex: str, relation: str) -> str:
    """Put the relation to the line before in front, unless the line begins with one."""
    starts = tex.lstrip()
    return (
        tex
        if starts.startswith((r"\le", r"\ge", "=")) and not starts.startswith(r"\left")
        else f"{SIGNS[relation]} {tex}"
    )


def _line(number: int, step: Step, *, first: bool) -> Markup:
    tex = latex_line(step)
    components = len(step.flat())
    if tex:
        shown = element("div", mathml(tex if first else with_relation(tex, step.relation)), class_="formula")
        more = f" (the first of {components} components)" if components > 1 and not step.tex else ""
    else:
        shown, more = None, " (too long to print)"
    why = element("p", "" if first else "because ", prose(step.why), more, class_="why")
    return element("div", element("span", str(number), class_="soft"), element("div", shown, why), class_="step")
