"""The log-odds displacement by confidence, as a reader meets it."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section, number, share, with_interval
from testbed.policies.noise.reported import CONFIDENCE_NAMES, reported

TINY = 1e-12  # nats


def displacement_section(records: list[dict[str, Any]]) -> Section:
    """Section of the record `confidence_records` returns: the mismatch where it was recorded, else the total."""
    gap = records[0]["gap"]
    shown = [r for r in records if r["gap"] == gap]
    rows = [_row(r) for r in shown]
    header = ("p of trainer", "tokens", "median", "q05, q95", "MAD eps [95%]", "ratio")
    told = [r for r in shown if "mad_eps" in r]
    outside = [r["bin"] for r in told if not r["as_expected"]]
    remarks = [
        f"eps: displacement of log-odds ({gap}: "
        + ("proximal" if gap == "mismatch" else "target")
        + " minus behavior), nats; k: ratio of the probabilities. MAD: median distance from the median. ratio: MAD log k / MAD "
        "eps, which engine noise keeps within the bin's own 1-p (C3)"
        + (f"; * marks it outside, in {', '.join(outside)}" if outside else "")
        + ". "
        + _finite(shown)
        + (_paper(told) if gap == "mismatch" else "")
        + "Intervals: bootstrap over responses; the others, and MAD log k, are in the JSON record"
        + (", as is the total (target minus behavior)." if len(records) > len(shown) else ".")
    ]
    return Section(
        title="DISPLACEMENT BY CONFIDENCE", says=_conclusion(gap, told), header=header, rows=rows, remarks=remarks
    )


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    start = (record["bin"], number(record["tokens"]))
    if "mad_eps" not in record:
        return (*start, *["-"] * 4)
    intervals = record["intervals"] or {}
    return (
        *start,
        number(record["median"], 2),
        f"{number(record['q05'], 2)}, {number(record['q95'], 2)}",
        with_interval(record["mad_eps"], intervals.get("mad_eps"), 2),
        number(record["mad_ratio"], 2) + ("" if record["as_expected"] else "*"),
    )


def _finite(shown: list[dict[str, Any]]) -> str:
    """Say how many tokens have no finite displacement: certain or impossible for one of the two."""
    part = [f"{share(r['finite'])} in {r['bin']}" for r in shown if r["finite"] is not None and r["finite"] < 1]
    return (
        f"eps is finite for {', '.join(part)}; the rest is certain or impossible for one of the two. " if part else ""
    )


def _paper(told: list[dict[str, Any]]) -> str:
    """Set the factor between the largest and the least MAD beside the one a paper measured on engine noise."""
    sizes = [r["mad_eps"] for r in told]
    if len(sizes) < 2 or min(sizes) <= 0:
        return ""
    paper = [reported(7, name, "MAD(epsilon)").value for name in CONFIDENCE_NAMES]
    return (
        f"Largest over least MAD: {number(max(sizes) / min(sizes), 3)} here; {number(max(paper) / min(paper), 3)}, growing "
        "with confidence, in the CIS paper's engine noise (Table 7). "
    )


def _conclusion(gap: str, told: list[dict[str, Any]]) -> str:
    """Say what the intervals say: which bins differ and by how much, or that no difference is seen."""
    if not told:
        return "Too few tokens to describe the displacement by confidence."
    low, high = (pick(told, key=lambda r: r["mad_eps"]) for pick in (min, max))
    if high["mad_eps"] == 0:
        return f"The {gap} displaces no log-odds: trainer and sampler recorded the same numbers."
    if len(told) == 1:
        return (
            f"Tokens enough in one range of confidence only, {low['bin']} (MAD {number(low['mad_eps'], 2)} nats): nothing to "
            "compare."
        )
    sizes = f"MAD {number(low['mad_eps'], 2)} to {number(high['mad_eps'], 2)} nats"
    if any(not r.get("intervals") for r in told):
        return f"Too few responses to tell whether the {gap} displaces log-odds alike at every confidence ({sizes})."
    apart = farthest_apart(told)
    if apart is None:
        return f"No difference seen: the {gap} displaces log-odds by {sizes}, and the intervals of all bins overlap."
    less, more = apart
    surer = more["low"] > less["low"]
    times = f", {number(more['mad_eps'] / less['mad_eps'], 2)} times as much" if less["mad_eps"] > 0 else ""
    return (
        f"The {gap} displaces log-odds {'more' if surer else 'less'} where the trainer is surer: MAD "
        f"{number(more['mad_eps'], 2)} nats where {_where(more['bin'])} against {number(less['mad_eps'], 2)} where "
        f"{_where(less['bin'])}{times}; the 95% intervals are disjoint."
    )


def farthest_apart(told: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the bins of least and largest MAD among pairs whose intervals are disjoint, by their factor; None if none are."""
    pairs = [
        (less, more)
        for less in told
        for more in told
        if less["intervals"]["mad_eps"]["high"] < more["intervals"]["mad_eps"]["low"]
    ]
    return max(pairs, key=lambda pair: pair[1]["mad_eps"] / max(pair[0]["mad_eps"], TINY), default=None)


def _where(name: str) -> str:
    return name if name.startswith("p") else f"p is in {name}"
