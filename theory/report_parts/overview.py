"""The head of the report: what ran, what was decided, every verdict in one table, and where to find the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from theory.report_parts.markup import Markup, Piece, element, safe, table
from theory.report_parts.notation import number, prose
from theory.report_parts.theorem import killed, word
from theory.verdict_file import verdict_word

Verdicts = Sequence[dict[str, Any]]
SECTIONS = {
    "S": "Segments and products of ratios",
    "O": "Caps",
    "K": "Mixing replay with fresh samples",
    "G": "Group baselines",
    "C": "Training-inference mismatch",
    "V": "Speculative rollouts",
}
NOT_PUBLIC = (
    "SPIRE's full text was not available to us, only its abstract. Every statement marked “a reading” is what the "
    "abstract can mean, put into a formula by us; where several readings fit, all are decided. Of the CIS "
    "paper we have the abstract and its tables with some rows cut off, the one that states its cap among them: that cap is a "
    "reading, too."
)
LABELS = {
    "git": "commit", "dirty": "uncommitted changes", "started": "started", "seconds": "seconds", "seed": "seed of sampled checks",
    "version": "version", "python": "Python", "platform": "platform",
}  # fmt: skip


def section_of(verdict: dict[str, Any]) -> str:
    """The letter a theorem's id begins with."""
    return str(verdict["id"])[:1].upper()


def sections(verdicts: Verdicts) -> dict[str, list[dict[str, Any]]]:
    """Verdicts by section, in the order they come."""
    found: dict[str, list[dict[str, Any]]] = {}
    for verdict in verdicts:
        found.setdefault(section_of(verdict), []).append(verdict)
    return found


def decided(header: dict[str, Any], verdicts: Verdicts) -> Markup:
    """What was decided, in one paragraph, and what stands against it."""
    good = [v for v in verdicts if v.get("holds")]
    words = [verdict_word(v) for v in good]
    refuted = [v for v in good if verdict_word(v).startswith("refuted")]
    mutants = [m for v in verdicts for m in v.get("mutants") or ()]
    dead = sum(bool(m.get("killed")) for m in mutants)
    reported = words.count("reported")
    wrong = "; " + _count(len(refuted), "usual claim is", "usual claims are")
    says: list[Piece] = [
        f"{len(good)} of {len(verdicts)} theorems were decided as catalogued. {words.count('holds')} hold, each on every "
        "instance enumerated",
        safe(wrong, " refuted by a counterexample (", _links(refuted), ")") if refuted else None,
        f"; {_count(reported, 'reports', 'report')} numbers" if reported else None,
        f". {dead} of {len(mutants)} mutants, each a theorem with one hypothesis dropped or one bug planted, were caught."
        if mutants
        else ". The mutants were not run.",
    ]  # fmt: skip
    failed = [v for v in verdicts if not v.get("holds")]
    readings = next((v["outcome"] for v in verdicts if v["id"] == "S4" and v.get("holds") and v.get("outcome")), None)
    return safe(
        element("p", *says, class_="lede"),
        element("p", "Not decided: ", _links(failed), ".", class_="bad") if failed else None,
        element("p", "The run was interrupted: theorems are missing.", class_="bad")
        if header.get("complete") is False
        else None,
        element("p", prose(readings)) if readings else None,
        element("p", NOT_PUBLIC, class_="warning"),
    )


def provenance(header: dict[str, Any]) -> Markup:
    """What ran, and on what."""
    versions = ", ".join(f"{name} {header[name]}" for name in ("torch", "numpy", "scipy", "sympy") if header.get(name))
    rows: list[Markup] = []
    for key, label in LABELS.items():
        if key in header:
            value = header[key]
            shown = "yes" if value is True else "no" if value is False else "unknown" if value is None else str(value)
            rows += [element("dt", label), element("dd", shown)]
    rows += [element("dt", "libraries"), element("dd", versions)] if versions else []
    dirty = element(
        "p",
        "The working tree had uncommitted changes: the commit alone does not reproduce these numbers.",
        class_="warning",
    )
    return safe(element("dl", *rows), dirty if header.get("dirty") else None)


def verdict_list(verdicts: Verdicts) -> Markup:
    """Every verdict in one table, each linked to its theorem."""
    rows = [
        (
            _link(v), str(v.get("kind", "")),
            safe(prose(str(v.get("title", ""))), element("span", " (a reading)", class_="note") if v.get("reading") else None),
            word(v), number(v.get("gap"), 2), killed(v),
        )
        for v in verdicts
    ]  # fmt: skip
    legend = (
        "“holds”: on every instance, to the tolerance. “refuted as claimed”: a usual statement is false, an instance shows it. "
        "Gap: of the main claim, scaled: rounding for an identity, minus the slack for a bound, the miss for a refuted claim."
    )
    return safe(
        element("p", legend, class_="soft"),
        table(("", "kind", "what", "verdict", "gap", "mutants killed"), rows, numbers=(4, 5), lines=(2,)),
    )


def contents(verdicts: Verdicts, diagnosed: bool) -> Markup:
    """Links to everything."""
    items = [element("li", element("a", "Verdicts", href="#verdicts"))]
    for letter, members in sections(verdicts).items():
        title = element("a", SECTIONS.get(letter, letter), href=f"#section-{letter}")
        items.append(element("li", title, element("div", *(safe(_link(v), " ") for v in members), class_="ids")))
    if diagnosed:
        items.append(element("li", element("a", "Diagnosis of the bundled rollouts", href="#diagnosis")))
    items.append(element("li", element("a", "Reproduce it, break it", href="#reproduce")))
    return element("nav", element("ul", *items), aria_label="Contents")


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _link(verdict: dict[str, Any]) -> Markup:
    return element("a", str(verdict["id"]), href=f"#{verdict['id']}")


def _links(verdicts: Verdicts) -> Markup:
    return safe([safe(", " if i else None, _link(v)) for i, v in enumerate(verdicts)])
