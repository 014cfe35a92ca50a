"""The diagnosis as a reader meets it: each section begins with the one sentence to take away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from testbed.core.sections import Section, number, share, with_interval
from testbed.diagnosis.advice_printed import advice_sections
from testbed.diagnosis.checks_printed import checks_section
from testbed.diagnosis.displacement_printed import displacement_section
from testbed.diagnosis.products import FEWEST_PRODUCTS
from testbed.diagnosis.response_means import FEWEST
from testbed.diagnosis.rules_printed import rules_section

PRODUCTS = "PRODUCTS THROUGH EACH SEGMENT"
MOST_COLUMNS = 3  # segments shown beside each other
NO_INTERVAL, PROMISE = " [none]", re.compile(r" \[[\d.]+%\]$")  # at the end of a cell; of a header or a row's name


def report_sections(record: dict[str, Any]) -> list[Section]:
    """Sections of the record `diagnose` returns.

    Of fewer than 20 responses no interval is drawn, and no section concludes what would need one; of a single response only
    what is said token by token is shown.
    """
    responses = record["batch"]["responses"]
    sections = [
        _batch(record["batch"], record.get("format"), record.get("format_notes", [])),
        checks_section(record["faults"], record.get("format")),
        _gaps(record["gaps"], responses),
        displacement_section(record["displacements"]),
        _unit_means(record["unit_means"], responses),
        _products(record["products"]),
        rules_section(record["rules"], responses),
        *advice_sections(record["advice"]),
        _readings(record["readings"]),
    ]
    return sections if responses >= FEWEST else [_without_empty_intervals(section) for section in sections]


def _without_empty_intervals(section: Section) -> Section:
    """Leave out intervals that are none everywhere, and their promise in a header or in the name of a row."""
    rows = [(row[0], *(cell.removesuffix(NO_INTERVAL) for cell in row[1:])) for row in section.rows]

    def named(name: str, cells: Sequence[str]) -> str:
        return name if any(cell.endswith("]") for cell in cells) else PROMISE.sub("", name)

    header = tuple(named(name, [row[i] for row in rows]) for i, name in enumerate(section.header))
    return replace(section, header=header, rows=[(named(row[0], row[1:]), *row[1:]) for row in rows])


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _batch(facts: dict[str, Any], layout: str | None, notes: list[str]) -> Section:
    says = (
        f"{_plural(facts['responses'], 'response')} in {_plural(facts['groups'], 'group')}, {_plural(facts['tokens'], 'token')} "
        f"(longest response {facts['longest']}), drawn in {_plural(len(facts['segments']), 'segment')} by "
        f"{_plural(facts['behaviors'], 'behavior')}; mean reward {number(facts['mean_reward'])}."
    )
    remarks = []
    if layout not in (None, "testbed"):
        remarks.append(f"Read as a dump of {layout}" + "".join(f"; {note}" for note in notes) + ".")
    if facts["responses"] < FEWEST:
        remarks.append(f"Fewer than {FEWEST} responses: no intervals, and no conclusions that would need them.")
    return Section(title="BATCH", says=says, remarks=remarks)


def _segment(label: int | None) -> str:
    return "all" if label is None else str(label)


def _gaps(gaps: list[dict[str, Any]], responses: int) -> Section:
    rows = []
    for gap in gaps:
        if "mean" not in gap:
            rows.append((gap["gap"], _segment(gap["segment"]), number(gap["tokens"]), *["-"] * 4))
            continue
        rows.append(
            (
                gap["gap"],
                _segment(gap["segment"]),
                number(gap["tokens"]),
                number(gap["mean"]),
                number(gap["sd"]),
                with_interval(gap["kl_k3"], gap["kl_k3_interval"], 2),
                share(gap["share_far"]),
            )
        )
    header = ("gap", "seg", "tokens", "mean", "sd", "KL [95%]", "|.|>0.1")
    directions = {gap["gap"]: gap["direction"] for gap in gaps}
    remarks = [
        "Nats per token. KL is k3 (k1 is minus the mean); it estimates "
        + "; ".join(f"for {name}, {direction}" for name, direction in directions.items())
        + "."
    ]
    total = [gap for gap in gaps if gap["gap"] == "total" and "largest" in gap]
    if total:
        top = max((gap["largest"] for gap in total), key=lambda largest: abs(largest["log_ratio"]))
        remarks.append(
            f"Largest: {number(top['log_ratio'])} at position {top['position']} of response {top['response']} "
            "(both counted from 0, responses in the order of the file)."
        )
    impossible = sum(gap["impossible"] for gap in total if gap["segment"] is not None)
    if impossible:
        remarks.append(f"Left out: {_plural(impossible, 'token')} of target probability 0.")
    says = _gap_conclusion(gaps)
    if responses < FEWEST:
        says += f" {_plural(responses, 'response')} cannot tell whether others would show the same."
    return Section(title="TOKEN GAPS", says=says, header=header, rows=rows, remarks=remarks)


def _gap_conclusion(gaps: list[dict[str, Any]]) -> str:
    by = {(gap["gap"], gap["segment"]): gap["kl_k3"] for gap in gaps if "kl_k3" in gap}
    total = {segment: value for (name, segment), value in by.items() if name == "total" and segment is not None}
    if not total:
        return "No token is possible under the target."
    worst = max(total, key=lambda segment: total[segment])
    says = f"Target and behavior are farthest apart in segment {worst}, {number(total[worst])} nats per token"
    pairs = {k: (by.get(("drift", k)), by.get(("mismatch", k))) for k in total}
    parts = [
        f"{'drift' if drift >= mismatch else 'mismatch'} is the larger part in segment {k} "
        f"({number(max(drift, mismatch))} against {number(min(drift, mismatch))})"
        for k, (drift, mismatch) in pairs.items()
        if drift is not None and mismatch is not None
    ]
    if not parts:
        return says + ("." if any(pair[0] is not None for pair in pairs.values()) else "; drift and mismatch cannot be "
                       "told apart without `logp_proximal`.")  # fmt: skip
    return says + "; " + ", ".join(parts) + "."


def _unit_means(records: list[dict[str, Any]], responses: int) -> Section:
    bad = [r for r in records if r["excludes_1"]]
    untold = [r for r in records if not r["excludes_1"] and r["interval"] is None]
    level = 100 * records[0]["level"]
    if bad:
        says = (
            f"The mean ratio is not 1 in {_plural(len(bad), 'case')}: the recorded behavior did not draw these tokens."
        )
    elif not untold:
        says = "The mean ratio is 1 within noise: nothing contradicts that the recorded behavior drew the tokens."
    elif len(untold) < len(records):
        says = (
            f"The mean ratio is 1 within noise in {len(records) - len(untold)} of {len(records)} cases; the others cannot be "
            "told."
        )
    else:
        few = f": {responses} of the {FEWEST} responses that an interval takes" if responses < FEWEST else ""
        says = f"Whether the mean ratio is 1 cannot be told{few}; only a mean far above 1 would show, in E."
    rows = [
        (
            r["ratio"],
            str(r["segment"]),
            number(r["tokens"]),
            with_interval(r["mean"], r["interval"], 4),
            number(r["log10_e_value"]),
            r["excludes_1"] or ("no" if r["interval"] else "unknown"),
        )
        for r in records
    ]
    header = ("ratio", "seg", "tokens", f"mean [{level:.4g}%]", "log10 E", "excludes 1")
    remark = (
        "Interval: bootstrap over responses, for many of them; its level keeps all false alarms of this table together at "
        "1%. E, the e-value: evidence that the mean is above 1; if the recorded behavior drew, E reaches x with probability "
        "1/x at most, at every sample size; blind to means below 1. Exchanged columns would show a mean of about 1 + 2 KL "
        "only: a small gap cannot tell which side drew."
    )
    return Section(title="E[w] = 1?", says=says, header=header, rows=rows, remarks=[remark])


def _products(products: list[dict[str, Any]]) -> Section:
    last = products[-1]
    raw, applied = last["raw"], last["applied"]
    if last["n"] == 1:
        says = f"One response tells nothing of how products spread; its own is {number(raw['largest'])}."
        return Section(title=PRODUCTS, says=says)
    kept = f"Correcting whole responses leaves {number(raw['ess'])} effective of {last['n']}"
    says = f"{kept} (second moment {number(raw['second_moment'])}); " + (
        f"a cap at {applied['cap']:g} shows {number(applied['ess'])}, which is less noise and more bias, not more information."
        if raw["largest"] > applied["cap"]
        else f"no product exceeds {applied['cap']:g}."
    )
    if last["n"] < FEWEST:
        says = f"{last['n']} responses are too few to tell what correcting whole responses costs; these products alone:"
        says += f" {number(raw['ess'])} effective of {last['n']}."
    shown = products if len(products) <= MOST_COLUMNS else [products[0], *products[1 - MOST_COLUMNS :]]
    lines = {
        "mean W_(k) [95%]": [with_interval(p["raw"]["mean"], p["raw"]["mean_interval"]) for p in shown],
        f"mean min(W_(k), {applied['cap']:g}) [95%]": [
            with_interval(p["applied"]["mean"], p["applied"]["mean_interval"]) for p in shown
        ],
        "E W_(k)^2 [95%]": [
            with_interval(p["raw"]["second_moment"], p["raw"]["second_moment_interval"]) for p in shown
        ],
        "chi2 = E W_(k)^2 - 1": [_excess(p, "chi2") for p in shown],
        "D2 = log E W_(k)^2, nats": [_excess(p, "renyi2") for p in shown],
        f"effective of {last['n']}, raw": [number(p["raw"]["ess"]) for p in shown],
        f"effective of {last['n']}, capped": [number(p["applied"]["ess"]) for p in shown],
        "Pareto k": [_tail(p) for p in shown],
        "median and largest": [f"{number(p['raw']['median'])}, {number(p['raw']['largest'])}" for p in shown],
    }
    header = ("through segment", *(f"k = {p['through_segment']}" for p in shown))
    rows = [(name, *cells) for name, cells in lines.items()]
    remarks = [
        f"W_(k): product of ratios through segment k. effective of {last['n']}: (sum w)^2 / sum w^2, how many equal weights "
        "would be as noisy. Pareto k: exponent of the largest weights' tail; from 0.5 on the variance is infinite, above 0.7 "
        "trust no mean. Sample estimates: with heavy tails they are too "
        "small, and the bootstrap intervals too short. The mean of the capped product has a 95% empirical Bernstein "
        "interval, valid at every n; its expectation is at most 1."
    ]
    if len(shown) < len(products):
        remarks.append(f"Of {len(products)} segments the first and the last are shown; the JSON record has all.")
    return Section(title=PRODUCTS, says=says, header=header, rows=rows, remarks=remarks)


def _excess(product: dict[str, Any], name: str) -> str:
    """Format a second moment's excess over the 1 that it cannot fall short of, which that of a few products easily does."""
    return number(product["raw"][name]) if product["n"] >= FEWEST else "-"


def _tail(product: dict[str, Any]) -> str:
    return number(product["raw"]["pareto_k"], 2) if product["n"] >= FEWEST_PRODUCTS else "-"


def _readings(found: dict[str, Any]) -> Section:
    advised = next(r for r in found["readings"] if r["reading"] == found["advised"])
    says = (
        f"Unbiased for this batch: {advised['reading']} (rule `{advised['rule']}`, {', '.join(advised['theorems'])}), "
        f"given {found['assumes']}."
    )
    rows = [(r["reading"], r["unbiased"], " ".join(r["theorems"]), r["because"]) for r in found["readings"]]
    header = ("reading", "unbiased", "theorems", "because")
    return Section(
        title="WHICH READING OF SPIRE APPLIES", says=says, header=header, rows=rows, remarks=[found["hedge"]],
        text=header[1:],
    )  # fmt: skip
