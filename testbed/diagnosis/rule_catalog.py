"""The registry of weighting rules as text: one line each, or everything about one. No numerical library is needed."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section
from testbed.weighting.registry import PLANNED, RULES, find_rule
from testbed.weighting.rule import Rule


def rule_as_record(rule: Rule) -> dict[str, Any]:
    """Every field of a rule that a user may want to read."""
    return {
        "name": rule.name,
        "granularity": rule.granularity,
        "granularities": list(rule.granularities),
        "summary": rule.summary,
        "formula": rule.formula,
        "parameters": dict(rule.parameters),
        "needs": list(rule.needs),
        "needs_advantage": rule.needs_advantage,
        "source": rule.source,
        "theorems": list(rule.theorems),
        "frameworks_differ": rule.differs,
    }


def list_rules() -> tuple[list[Section], list[dict[str, Any]]]:
    """All rules, as a table and as records."""
    rules = list(RULES.values())
    rows = [(rule.name, rule.granularity, " ".join(rule.theorems), _parameters(rule)) for rule in rules]
    table = Section(
        title="WEIGHTING RULES",
        says=f"{len(rules)} rules, each a granularity (which ratio) and an operator (what is done to it); "
        "`rules NAME` says how frameworks differ.",
        header=("rule", "granularity", "theorems", "parameters"),
        rows=rows,
        text=("granularity", "theorems", "parameters"),
        remarks=["`python -m theory show ID` prints a theorem; all that are named here are decided."],
    )
    summaries = Section(
        title="WHAT THEY DO", says="One line each; rho is the ratio target / behavior.", header=("rule", "summary"),
        rows=[(rule.name, rule.summary) for rule in rules], text=("summary",),
    )  # fmt: skip
    sources = Section(
        title="SOURCES", says="Where each was published.", header=("rule", "source"), text=("source",),
        rows=[(rule.name, rule.source) for rule in rules],
        remarks=[f"Planned: {', '.join(PLANNED)}."] if PLANNED else [],
    )  # fmt: skip
    return [table, summaries, sources], [rule_as_record(rule) for rule in rules]


def one_rule(name: str) -> tuple[list[Section], list[dict[str, Any]]]:
    """Everything about one rule.

    Raises
    ------
    InputError   unknown name
    """
    rule = find_rule(name)
    needs = [_need(rule, field) for field in rule.needs] + (
        ["the sign of an advantage"] if rule.needs_advantage else []
    )
    accepted = "any" if rule.generic else ", ".join(rule.granularities)
    rows = [
        ("formula", rule.formula),
        ("granularity", f"{rule.granularity} (accepts: {accepted})"),
        ("parameters", _parameters(rule) or "none"),
        ("needs", ", ".join(needs) or "nothing beyond the two log-probs"),
        ("source", rule.source),
        ("theorems", " ".join(rule.theorems) or "none yet"),
        ("frameworks", rule.differs or "no deviation known"),
    ]
    section = Section(title=rule.name, says=rule.summary + ".", remarks=[f"{label}: {text}" for label, text in rows])
    return [section], [rule_as_record(rule)]


def _need(rule: Rule, field: str) -> str:
    laws = " (`testbed.NextTokenLaws`: both laws of every token's whole vocabulary)" * (field == "next_token")
    return f"`{field}`{laws}" + (f" (or parameter `{rule.instead[field]}`)" if field in rule.instead else "")


def _parameters(rule: Rule) -> str:
    return " ".join(f"{name}={value}" for name, value in rule.parameters.items())
