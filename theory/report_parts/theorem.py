"""One theorem as a reader meets it: hypotheses first, then statement, derivation, claims with numbers, mutants, meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from theory.report_parts.images import pictures
from theory.report_parts.markup import Markup, Piece, element, folded, name_code, safe, table
from theory.report_parts.notation import number, prose
from theory.report_parts.rows import tables
from theory.report_parts.steps import derivation_steps
from theory.verdict_file import verdict_word

RELATIONS = {"equal": "=", "at_most": "≤", "differs": "≠"}
READING = "This is a reading. The full text of {} was not available to us: the formula is what its abstract can mean."
TICK, CROSS = "✓", "✗"


def killed(verdict: dict[str, Any]) -> str:
    """Mutants killed over mutants run."""
    mutants = verdict.get("mutants") or []
    if not mutants:
        return "–"
    return f"{sum(bool(m.get('killed')) for m in mutants)}/{len(mutants)}"


def word(verdict: dict[str, Any]) -> Markup:
    """The verdict word, with a sign that survives a print without color."""
    good = bool(verdict.get("holds"))
    return element("span", f"{TICK if good else CROSS} {verdict_word(verdict)}", class_="good" if good else "bad")


def article(verdict: dict[str, Any], figures: Path | None) -> Markup:
    """Everything known about one verdict; what a record lacks is left out."""
    name = str(verdict["id"])
    badges = (
        element("span", word(verdict)),
        element("span", str(verdict.get("kind", ""))),
        element("span", f"{killed(verdict)} mutants killed") if verdict.get("mutants") else None,
        element("span", "a reading", class_="note") if verdict.get("reading") else None,
    )
    hypotheses = [element("li", prose(h)) for h in verdict.get("hypotheses", ())]
    parts: list[Piece] = [
        element("h3", element("a", name, href=f"#{name}"), " · ", prose(str(verdict.get("title", "")))),
        element("p", *badges, class_="badges"),
        *(element("p", problem, class_="bad") for problem in verdict.get("problems", ())),
        _titled("Hypotheses", element("ol", *hypotheses)) if hypotheses else None,
        _titled("Statement", element("p", prose(verdict["statement"]), class_="statement"))
        if verdict.get("statement")
        else None,
        element("p", "Source: ", prose(str(verdict.get("source", ""))), "."),
        element("p", READING.format(_paper(verdict)), class_="warning") if verdict.get("reading") else None,
        _derivation(name, verdict.get("derivation")),
        _titled("Claims", _claims(verdict["claims"])) if verdict.get("claims") else _first_claim(verdict),
        tables(verdict.get("table") or []),
        *pictures(name, figures),
        _mutants(verdict.get("mutants") or []),
        _titled("Sampled check", _sampled(verdict["sampled"])) if verdict.get("sampled") else None,
        _titled("What it means", element("p", prose(verdict["outcome"]))) if verdict.get("outcome") else None,
    ]
    return element("article", *parts, id=name)


def _paper(verdict: dict[str, Any]) -> str:
    return "SPIRE" if "SPIRE" in str(verdict.get("source", "")) else "the paper"


def _titled(title: str, *pieces: Piece) -> Markup:
    return safe(element("h4", title), *pieces)


def _derivation(name: str, found: dict[str, Any] | None) -> Markup | None:
    steps = derivation_steps(name)
    if steps is None and found is None:
        return None
    says: Markup | None = None
    if found is not None:
        result = (
            f"{TICK} Every one of the {found.get('steps', 0)} steps follows exactly at {found.get('points', 0)} random rational "
            "points, and what is derived equals what the library computes, to "
            if found.get("holds")
            else f"{CROSS} Broken: {found.get('problem', '')}; gap "
        )
        says = element("p", result, number(found.get("gap"), 2), ".", class_=None if found.get("holds") else "bad")
    if steps is None:
        steps = element("p", "This version of the program has no derivation under this id.", class_="soft")
    return folded("Derivation, step by step", says, steps)


def _claims(claims: list[dict[str, Any]]) -> Markup:
    header = ("claim", "left", "", "right", "gap", "tolerance", "instances", "instance shown")
    rows = [
        (
            safe(
                element("span", TICK if c["holds"] else CROSS, class_="good" if c["holds"] else "bad"),
                " ", name_code(c["name"]), element("p", prose(c["says"]), class_="soft"),
            ),
            number(c["lhs"], 7), RELATIONS.get(c["relation"], c["relation"]), number(c["rhs"], 7), number(c["gap"], 2),
            number(c["tolerance"], 2), number(c["instances"]), name_code(c["worst"]),
        )
        for c in claims
    ]  # fmt: skip
    note = (
        "Left and right: where an equality holds, the instance and component of largest size, else the worst. "
        "Gap: the largest difference over the larger size (0.01 at least); "
        "for ≤ a negative gap is slack."
    )
    return safe(table(header, rows, numbers=(1, 3, 4, 5, 6), lines=(0,)), element("p", note, class_="soft"))


def _first_claim(verdict: dict[str, Any]) -> Markup:
    header = ("left", "right", "gap", "tolerance", "instances")
    row = (
        number(verdict.get("lhs"), 7), number(verdict.get("rhs"), 7), number(verdict.get("gap"), 2),
        number(verdict.get("tolerance"), 2), number(verdict.get("instances")),
    )  # fmt: skip
    return _titled("First claim", table(header, [row], numbers=range(5)))


def _mutants(mutants: list[dict[str, Any]]) -> Markup | None:
    if not mutants:
        return None
    kinds = {"hypothesis": "hypothesis dropped", "bug": "bug planted"}
    rows = [
        (
            safe(
                element("span", TICK if m.get("killed") else CROSS, class_="good" if m.get("killed") else "bad"),
                " ", name_code(m["name"]), element("p", prose(str(m.get("why", ""))), class_="soft"),
                element("p", m["problem"], class_="bad") if m.get("problem") else None,
            ),
            kinds.get(str(m.get("kind")), str(m.get("kind", ""))),
            number(m.get("margin"), 3), number(m.get("required"), 2),
            safe([safe(", " if i else None, name_code(name)) for i, name in enumerate(m.get("broke", ()))]),
        )
        for m in mutants
    ]  # fmt: skip
    alive = sum(not m.get("killed") for m in mutants)
    summary = f"Mutants: {len(mutants)} ways to get it wrong, " + (f"{alive} not caught" if alive else "all caught")
    header = ("mutant", "what is wrong", "margin", "needed", "claims broken")
    return folded(summary, table(header, rows, numbers=(2, 3), lines=(0,)), open_=bool(alive))


def _sampled(sampled: dict[str, Any]) -> Markup:
    says = [
        safe(prose(str(sampled["what"])), ": ") if sampled.get("what") else None,
        number(sampled.get("n")), " draws; false-alarm rate ", number(sampled.get("alpha"), 2), ", power ",
        number(sampled.get("power"), 3),
    ]  # fmt: skip
    if "statistic" in sampled:
        says += [
            f"; {TICK if sampled.get('passed') else CROSS} statistic ", number(sampled["statistic"], 3),
            ", threshold ", number(sampled.get("threshold"), 3),
        ]  # fmt: skip
    return element("p", *says, ".")
