"""The rules about a notebook's source, each a function from text to complaints, so that each can be shown to fail."""

from __future__ import annotations

import ast
import re

import jupytext

INSIDES = {"logp_target", "logp_behavior", "log_ratios", "score_terms"}  # what an estimator is made of


def cells(text, kind):
    """Return the sources of a notebook's cells of one kind, "code" or "markdown"."""
    return [cell.source for cell in jupytext.reads(text, fmt="py:percent").cells if cell.cell_type == kind]


def numbers_in_prose(text):
    """Complain about each decimal number or percentage in prose: numbers come from printed cells."""
    prose = "\n".join(cells(text, "markdown"))
    prose = re.sub(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", "", prose, flags=re.DOTALL)
    return [f"{found!r} stands in prose" for found in re.findall(r"\d+\.\d+|\d+\s*%", prose)]


def estimators_defined(text):
    """Complain about each function or class in a cell that handles log-probabilities or scores itself."""
    found = []
    for node in ast.walk(ast.parse("\n".join(cells(text, "code")))):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            found += [f"line {node.lineno} defines something of {name}" for name in sorted(names & INSIDES)]
    return found


def parts_missing(text):
    """Complain about what every notebook has: a prediction before an answer, a control, assertions, a way to break it."""
    code, prose = "\n".join(cells(text, "code")), "\n".join(cells(text, "markdown"))
    wanted = {
        "a prediction that the reader makes": re.search(r"^prediction = None", code, re.MULTILINE),
        "an answer after it": re.search(r"^prediction = None.*?^reveal\(", code, re.MULTILINE | re.DOTALL),
        "a control": "Control(" in code,
        "an assertion": re.search(r"^assert ", code, re.MULTILINE),
        "a command that breaks a theorem": "python -m theory break " in prose,
        "the kernel's name": "name: python3" in text,
        "its question": "**Question.**" in prose,
    }
    return [f"{part} is missing" for part, there in wanted.items() if not there]


def mutants_named(text):
    """Return the (theorem, mutant) pairs that the prose tells the reader to break."""
    return re.findall(r"python -m theory break (\w+):(\w+)", "\n".join(cells(text, "markdown")))
